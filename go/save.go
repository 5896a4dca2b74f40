package waveinfer

// #include "callback.h"
import "C"

import (
	"context"
	"io"
)

// Who would be called back is there before C is called: a call with nobody to serve it has no way out of C.
var (
	errNoReader = argumentError("the reader is nil")
	errNoWriter = argumentError("the writer is nil")
)

// checkReader refuses what no call reads from.
func checkReader(reader io.Reader, bytes int64) error {
	if reader == nil {
		return errNoReader
	}
	if bytes < 0 {
		return argumentError("bytes is %d, must not be negative", bytes)
	}
	return nil
}

// readerOf is a C reader of so many bytes of call.reader.
func readerOf(bytes int64) *C.wi_reader {
	return &C.wi_reader{
		struct_size: C.sizeof_wi_reader,
		bytes:       C.uint64_t(bytes),
		read:        (*[0]byte)(C.wi_go_read),
	}
}

// writerOf is a C writer to call.writer.
func writerOf() *C.wi_writer {
	return &C.wi_writer{struct_size: C.sizeof_wi_writer, write: (*[0]byte)(C.wi_go_write)}
}

// Save writes the session to a file: tokens, KV, index, sampler, parameters; checksummed. The file appears
// whole or not at all; an older file at path survives any failure. A new file's mode is 0666 without the
// process's umask; one that replaces another has its mode. A symbolic link at path is followed. The first
// save or load with a model reads all of its weights, for a hash that names it in the file.
//
// Errors: [ErrIO]; [ErrFormat] if the file that the session was loaded from was damaged meanwhile; [ErrCancelled],
// [ErrBusy].
func (s *Session) Save(ctx context.Context, path string) error {
	name, err := terminated("path", path)
	if err != nil {
		return err
	}
	c, err := s.handle.beginAlone(ctx)
	if err != nil {
		return err
	}
	defer c.end()
	return c.check(C.wi_session_save(s.handle.object, name, c.token(), &c.error))
}

// SaveTo writes the same bytes to a writer, in pieces of at most 1 MiB and a little. After a failure what was
// written is of no use. Errors: [ErrIO], which wraps the writer's, or is of the slow tier; [ErrFormat], as Save;
// [ErrCancelled], [ErrBusy].
func (s *Session) SaveTo(ctx context.Context, writer io.Writer) error {
	if writer == nil {
		return errNoWriter
	}
	c, err := s.handle.beginAlone(ctx)
	if err != nil {
		return err
	}
	defer c.end()
	c.writer = writer
	return c.check(c.run(func() C.wi_status {
		return C.wi_session_save_to(s.handle.object, writerOf(), c.token(), &c.error)
	}))
}

// SavedBytes tells how many bytes a save of the session as it is now takes; it costs microseconds. Errors:
// [ErrBusy].
func (s *Session) SavedBytes() (int64, error) {
	c, err := s.handle.beginAlone(never)
	if err != nil {
		return 0, err
	}
	defer c.end()
	bytes := new(C.uint64_t)
	err = c.check(C.wi_session_saved_bytes(s.handle.object, bytes, &c.error))
	return int64(*bytes), err
}

// Load reads a session back. What params leave at zero is as it was saved: policy and each of its parameters,
// KV type, budget, SparseReadTokens, PrefixReuse, sampler. What is given must be as saved where it shapes
// what is stored (KVType, the policy's Name, SegmentTokens, DecodeSegmentTokens, TokensPerCentroid,
// KMeansIterations), and applies where it does not. As zero means "as saved", "none" is written so:
// KVBudgetBytes math.MaxUint64; SparseReadTokens, LocalWindow, Estimation, TargetMass and Repeats negative.
// Sampling is taken whole, and its random numbers start from its seed. To read a session through another
// policy, load it and call [Session.ForkAs].
//
// In a runtime with a slow tier the sealed keys and values stay where they are in the file, which is kept
// open as long as a segment of it is needed; it may be renamed, removed and replaced. Nothing in the file is
// trusted.
//
// Errors: [ErrIO]; [ErrFormat] for a damaged or truncated file, one that is no session, or one of a version
// that this library does not read; [ErrUnsupported] for a policy, a sampler or a section that it does not
// know; [ErrMismatch] for another model or other parameters; [ErrBudget], [ErrCancelled].
func (m *Model) Load(ctx context.Context, path string, params *SessionParams) (*Session, error) {
	name, err := terminated("path", path)
	if err != nil {
		return nil, err
	}
	return m.newSession(ctx, params, func(c *call, p *C.wi_session_params, out **C.wi_session) C.wi_status {
		return C.wi_session_load(m.handle.object, name, p, c.token(), out, &c.error)
	})
}

// LoadFrom reads a session of so many bytes back from a reader, which is read from its beginning to its end.
// All of it is read into memory. An error of the reader ends the call with [ErrIO] and is wrapped. The rest:
// as [Model.Load].
func (m *Model) LoadFrom(ctx context.Context, reader io.Reader, bytes int64, params *SessionParams) (*Session, error) {
	if err := checkReader(reader, bytes); err != nil {
		return nil, err
	}
	return m.newSession(ctx, params, func(c *call, p *C.wi_session_params, out **C.wi_session) C.wi_status {
		c.reader = reader
		return c.run(func() C.wi_status {
			return C.wi_session_load_from(m.handle.object, readerOf(bytes), p, c.token(), out, &c.error)
		})
	})
}
