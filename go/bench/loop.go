// Package bench measures what a decode step costs in Go over the same loop in C:
//
//	go test -bench . -count 5 ./bench
package bench

// #cgo pkg-config: waveinfer
// #include <stdlib.h>
// #include "loop.h"
import "C"

import (
	"errors"
	"time"
	"unsafe"
)

// Session is a session of C that Go's binding has no part in.
type Session struct {
	session *C.wi_session
	event   C.wi_event
	failure C.wi_error
}

// Open opens a model in a runtime of one thread and has a session read a text.
func Open(model, text string) (*Session, error) {
	path := C.CString(model)
	defer C.free(unsafe.Pointer(path))
	failure := &C.wi_error{struct_size: C.sizeof_wi_error}
	session := C.bench_open(path, (*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.uint64_t(len(text)), failure)
	if session == nil {
		return nil, errors.New(C.GoString(&failure.message[0]))
	}
	return &Session{session, C.wi_event{struct_size: C.sizeof_wi_event}, *failure}, nil
}

// Decode decodes a token for each element of took, which C sets to what the step took, and outside to what of
// it the session's own statistics do not count.
func (s *Session) Decode(took, outside []time.Duration) error {
	failure := &C.wi_error{struct_size: C.sizeof_wi_error}
	if C.bench_decode(s.session, C.int64_t(len(took)), times(took), times(outside), failure) != C.WI_OK {
		return errors.New(C.GoString(&failure.message[0]))
	}
	return nil
}

// Step decodes a token by a call of cgo's and nothing else, and returns how much of its time the session's own
// statistics do not count.
func (s *Session) Step() (outside time.Duration, err error) {
	before, start := C.bench_counted(s.session), time.Now()
	status := C.wi_session_decode(s.session, nil, &s.event, &s.failure)
	took := time.Since(start)
	if status != C.WI_OK {
		return 0, errors.New(C.GoString(&s.failure.message[0]))
	}
	return took - time.Duration(C.bench_counted(s.session)-before), nil
}

func times(t []time.Duration) *C.int64_t { return (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(t))) }

// Truncate cuts the session back.
func (s *Session) Truncate(tokens int) { C.wi_session_truncate(s.session, C.uint64_t(tokens), nil) }

// Close gives the session back.
func (s *Session) Close() { C.wi_session_release(s.session) }
