package waveinfer

// #include "callback.h"
import "C"

import (
	"context"
	"iter"
	"runtime"
)

// Session is one token sequence with its KV cache and its sampler. One goroutine at a time uses it, not
// always the same one; [Session.Stats] may be called at any time.
type Session struct {
	handle  *handle[*C.wi_session]
	uses    *sessionUses
	cleanup runtime.Cleanup
}

// NewSession makes an empty session. It takes memory only as tokens come. nil params mean all defaults.
// Errors: [ErrUnsupported] for an unknown policy.
func (m *Model) NewSession(params *SessionParams) (*Session, error) {
	return m.newSession(never, params, func(c *call, p *C.wi_session_params, out **C.wi_session) C.wi_status {
		return C.wi_session_create(m.handle.object, p, out, &c.error)
	})
}

// newSession makes a session by a call on the model.
func (m *Model) newSession(ctx context.Context, params *SessionParams,
	create func(c *call, p *C.wi_session_params, out **C.wi_session) C.wi_status) (*Session, error) {
	c, err := m.handle.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer c.end()
	memory, _ := m.handle.keep.(*pinnedMemory)
	return sessionBy(c, params, m.handle.log, memory, nil, create)
}

// sessionBy makes a session by a call; hooks are those that it inherits where params have no sampling.
func sessionBy(c *call, params *SessionParams, log *logSink, memory *pinnedMemory, hooks []*logitsHook,
	create func(c *call, p *C.wi_session_params, out **C.wi_session) C.wi_status) (*Session, error) {
	var pinned pins
	defer pinned.Unpin()
	p, hook := pinned.session(params)
	out, made := new(*C.wi_session), false
	defer func() {
		if !made { // a reader may have panicked too
			C.wi_session_release(*out)
			hook.drop()
		}
	}()
	if pinned.err != nil {
		return nil, pinned.err
	}
	if err := c.check(create(c, p, out)); err != nil {
		return nil, err
	}
	made = true
	if hook != nil {
		hooks = []*logitsHook{hook}
	}
	uses := &sessionUses{kept: &sessionKept{memory: memory}}
	uses.set(hooks...)
	return newSession(*out, log, uses), nil
}

func newSession(object *C.wi_session, log *logSink, uses *sessionUses) *Session {
	s := &Session{uses: uses, handle: &handle[*C.wi_session]{
		object: object, kind: "session", log: log, keep: uses.kept,
		release: func(object *C.wi_session) { C.wi_session_release(object) },
	}}
	s.cleanup = runtime.AddCleanup(s, (*handle[*C.wi_session]).close, s.handle)
	return s
}

// Close gives the session back. Forks of it and tasks on it go on. It returns nil.
func (s *Session) Close() error {
	s.cleanup.Stop()
	s.handle.close()
	return nil
}

// PrefillParams say how a prompt is read; zero means default.
type PrefillParams struct {
	// Tokens computed at once, at most 1048576. 0: chosen by the library.
	ChunkTokens int
	// Called with tokens done and tokens in this call: after each chunk, and at least every 250 ms within one, with
	// the same numbers again. While its text is tokenised: 0 and the text's bytes. An error ends the call.
	Progress func(done, total uint64) error
	// nil, or filled with the logits of every token of this call, (tokens, vocab): it must have room for them.
	// Unspecified after a failure.
	Logits []float32
}

// Prefill appends tokens and computes their keys and values (and those of a token that is pending after a
// decode), in chunks. Full segments are sealed on the way. Calling it in pieces gives the same as calling it
// once: the same segments, with keys and values that differ by rounding. nil params mean all defaults.
//
// Errors: [ErrUnsupported] if keys or values are beyond the KV type, or the session would be longer than
// ModelInfo.MaxPositions where that is enforced; [ErrBudget], [ErrCancelled], [ErrBusy]; of the slow tier [ErrIO],
// if its disk fails, and [ErrFormat], if the file that the session was loaded from was damaged meanwhile. The
// session is then as it was before the call.
func (s *Session) Prefill(ctx context.Context, tokens []Token, params *PrefillParams) error {
	ids, count := tokensOf(tokens)
	return s.prefill(ctx, params, func(c *call, p *C.wi_prefill_params) C.wi_status {
		return C.wi_session_prefill(s.handle.object, ids, count, p, c.token(), &c.error)
	})
}

// AppendText tokenises and prefills. Errors: as [Model.Tokenize] and [Session.Prefill]. The rest: as there.
func (s *Session) AppendText(ctx context.Context, text string, flags TokenizeFlags, params *PrefillParams) error {
	bytes, length := textOf(text)
	return s.prefill(ctx, params, func(c *call, p *C.wi_prefill_params) C.wi_status {
		return C.wi_session_append_text(s.handle.object, bytes, length, C.uint32_t(flags), p, c.token(), &c.error)
	})
}

func (s *Session) prefill(ctx context.Context, params *PrefillParams, read func(c *call, p *C.wi_prefill_params) C.wi_status) error {
	c, err := s.handle.beginAlone(ctx)
	if err != nil {
		return err
	}
	defer c.end()
	if params == nil {
		return c.check(read(c, nil))
	}
	var pinned pins
	defer pinned.Unpin()
	logits := params.Logits // looked at once: what C is told of its length is of the same slice
	p := &C.wi_prefill_params{
		struct_size:     C.sizeof_wi_prefill_params,
		chunk_tokens:    int32Of(params.ChunkTokens),
		logits_capacity: C.uint64_t(len(logits)),
	}
	if len(logits) > 0 {
		p.logits = floatsOf(logits)
		pinned.Pin(p.logits)
	}
	if params.Progress != nil {
		c.progress = params.Progress
		p.progress = C.wi_progress_callback(C.wi_go_progress)
	}
	return c.check(c.run(func() C.wi_status { return read(c, p) }))
}

// Decode appends one token: samples it from the logits of the last computed one. The new token is pending:
// its own keys and values are computed by the next call that needs them. A token that ends the answer is an
// event of kind [EventEnd]; it is in the session like any other, and the session may go on.
//
// Errors: [ErrState] if the session is empty, or no token is left to sample; [ErrUnsupported] if the token
// before has keys or values beyond the KV type, or is beyond ModelInfo.MaxPositions where that is enforced;
// [ErrBudget], [ErrCancelled], [ErrBusy]; [ErrIO] and [ErrFormat] of the slow tier, as [Session.Prefill]. No token
// is lost and none is added.
func (s *Session) Decode(ctx context.Context) (Event, error) {
	c, err := s.handle.beginAlone(ctx)
	if err != nil {
		return Event{}, err
	}
	defer c.end()
	return s.decode(c)
}

func (s *Session) decode(c *call) (Event, error) {
	var status C.wi_status
	if s.uses.calls.Load() {
		status = c.serve(func() C.wi_status {
			return C.wi_session_decode(s.handle.object, c.token(), &c.event, &c.error)
		})
		runtime.KeepAlive(s) // and so its callback
	} else {
		status = C.wi_session_decode(s.handle.object, c.token(), &c.event, &c.error)
	}
	if status != C.WI_OK {
		return Event{}, c.check(status)
	}
	return eventOf(&c.event), nil
}

// Events returns the tokens of an answer as they are decoded, a call of [Session.Decode] for each. The last
// one is the first that is no [EventToken], or an error. Who stops earlier leaves the session after the last
// event that was seen, and may go on with it, by Events too. Between two events the session may be used.
func (s *Session) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		cancel, err := watch(ctx) // once for all steps
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer cancel.end()
		for {
			event, err := s.step(ctx, cancel)
			if !yield(event, err) || err != nil || event.Kind != EventToken {
				return
			}
		}
	}
}

func (s *Session) step(ctx context.Context, cancel *cancel) (Event, error) {
	c, err := s.handle.beginAlone(never)
	if err != nil {
		return Event{}, err
	}
	defer c.end()
	c.ctx, c.cancel, c.borrows = ctx, cancel, true
	if ctx.Err() != nil && cancel != nil {
		cancel.hasten()
	}
	return s.decode(c)
}

// Accept appends one token that the program chose, exactly as [Session.Decode] appends one that it sampled:
// with its text, log-probability and end; stop strings are looked for. The random numbers stay where they
// are. With [Session.Logits] this is decode with a sampler of one's own. Errors: as Decode.
func (s *Session) Accept(ctx context.Context, token Token) (Event, error) {
	c, err := s.handle.beginAlone(ctx)
	if err != nil {
		return Event{}, err
	}
	defer c.end()
	status := C.wi_session_accept(s.handle.object, C.int32_t(token), c.token(), &c.event, &c.error)
	if status != C.WI_OK {
		return Event{}, c.check(status)
	}
	return eventOf(&c.event), nil
}

// Logits returns the logits of the last token, (vocab), those that decode would sample from; it computes them
// first if the token is pending. They are written to logits if that has room for them, else to a new slice.
// Errors: as [Session.Decode].
func (s *Session) Logits(ctx context.Context, logits []float32) ([]float32, error) {
	c, err := s.handle.beginAlone(ctx)
	if err != nil {
		return nil, err
	}
	defer c.end()
	count := new(C.uint64_t)
	if err := c.check(C.wi_session_logits(s.handle.object, nil, nil, 0, count, &c.error)); err != nil {
		return nil, err
	}
	if uint64(cap(logits)) < uint64(*count) {
		logits = make([]float32, *count)
	}
	logits = logits[:*count]
	status := C.wi_session_logits(s.handle.object, c.token(), floatsOf(logits), *count, count, &c.error)
	if err := c.check(status); err != nil {
		return nil, err
	}
	return logits, nil
}

// Tokens returns the ids of all tokens, the pending one included. Errors: [ErrBusy].
func (s *Session) Tokens() ([]Token, error) {
	c, err := s.handle.beginAlone(never)
	if err != nil {
		return nil, err
	}
	defer c.end()
	count := new(C.uint64_t)
	if err := c.check(C.wi_session_tokens(s.handle.object, nil, 0, count, &c.error)); err != nil {
		return nil, err
	}
	tokens := make([]Token, *count)
	ids, capacity := tokensOf(tokens)
	if err := c.check(C.wi_session_tokens(s.handle.object, ids, capacity, count, &c.error)); err != nil {
		return nil, err
	}
	return tokens, nil
}

// Fork makes a second session that goes on from here on its own: same tokens, parameters, logits and sampler
// state. It shares everything sealed and copies the rest when one of the two writes; takes microseconds. The
// two may be used by two goroutines at once. Errors: [ErrBusy].
func (s *Session) Fork() (*Session, error) {
	return s.fork(never, nil, func(c *call, _ *C.wi_session_params, out **C.wi_session) C.wi_status {
		return C.wi_session_fork(s.handle.object, out, &c.error)
	})
}

// ForkAs makes a fork under other parameters: the same tokens, keys, values and logits, read through another
// policy or another budget, without computing the prompt again. Where the policy and what shapes its index
// are the same, everything sealed is shared; else keys and values are copied and indexed anew. Without
// Sampling the sampler goes on where it is, and a zero KVType is the session's; what else is not given is the
// default, not the session's.
//
// Errors: [ErrArgument] if the KV type is another than the session's; [ErrUnsupported] for an unknown policy;
// [ErrBudget], [ErrCancelled], [ErrBusy]; [ErrIO] and [ErrFormat] of the slow tier, as [Session.Prefill].
func (s *Session) ForkAs(ctx context.Context, params *SessionParams) (*Session, error) {
	return s.fork(ctx, params, func(c *call, p *C.wi_session_params, out **C.wi_session) C.wi_status {
		return C.wi_session_fork_as(s.handle.object, p, c.token(), out, &c.error)
	})
}

func (s *Session) fork(ctx context.Context, params *SessionParams,
	fork func(c *call, p *C.wi_session_params, out **C.wi_session) C.wi_status) (*Session, error) {
	c, err := s.handle.beginAlone(ctx)
	if err != nil {
		return nil, err
	}
	defer c.end()
	return sessionBy(c, params, s.handle.log, s.uses.kept.memory, s.uses.list(), fork)
}

// Truncate cuts the session back to its first tokens. The new last one is pending: its logits are computed by
// the next call that needs them. Where the last prefill ended, the session is as it was then: the same
// logits, bit for bit, and the same segments, so that another answer starts where the first one did; in a
// fork too. What events still held back of a text is dropped.
//
// Errors: [ErrArgument] for more tokens than it has; [ErrBudget], [ErrMemory] (for a moment a cut segment and what
// is left of it are both held), [ErrBusy]; [ErrIO] and [ErrFormat] of the slow tier, as [Session.Prefill]. The
// session is then as it was.
func (s *Session) Truncate(tokens int) error {
	count, err := countOf("tokens", tokens)
	if err != nil {
		return err
	}
	c, err := s.handle.beginAlone(never)
	if err != nil {
		return err
	}
	defer c.end()
	return c.check(C.wi_session_truncate(s.handle.object, count, &c.error))
}

// SetSampling replaces the sampling parameters and starts their random numbers anew from the seed; nil:
// greedy. Text that was held back stays so. Errors: [ErrArgument] for a bias of a token beyond the
// vocabulary; [ErrBusy].
func (s *Session) SetSampling(sampling *SamplingParams) error {
	c, err := s.handle.beginAlone(never)
	if err != nil {
		return err
	}
	defer c.end()
	var pinned pins
	defer pinned.Unpin()
	p, hook := pinned.sampling(sampling)
	if err := c.check(C.wi_session_set_sampling(s.handle.object, p, &c.error)); err != nil {
		hook.drop()
		return err
	}
	if hook == nil {
		s.uses.set()
	} else {
		s.uses.set(hook)
	}
	return nil
}

// Stats tells what the session has done, as of the end of its last call; also while a call is running.
func (s *Session) Stats() (SessionStats, error) {
	c, err := s.handle.begin(never)
	if err != nil {
		return SessionStats{}, err
	}
	defer c.end()
	stats := &C.wi_session_stats{struct_size: C.sizeof_wi_session_stats}
	if err := c.check(C.wi_session_get_stats(s.handle.object, stats, &c.error)); err != nil {
		return SessionStats{}, err
	}
	return sessionStatsOf(stats), nil
}
