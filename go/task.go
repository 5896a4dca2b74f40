package waveinfer

// #include "callback.h"
import "C"

import (
	"context"
	"iter"
	"runtime"
	"runtime/cgo"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// TaskParams are what a task is to do; zero means default.
type TaskParams struct {
	Priority int // -8 to 8, higher first; one more is twice the share of the time
	// The prompt: tokens, or text, or neither, to go on from what the session has.
	Tokens        []Token
	Text          string          // tokenised by the runtime, in pieces between others' steps
	TokenizeFlags TokenizeFlags   // how; or-ed
	MaxTokens     int             // of the answer. 0: until it ends; planned with 1024
	Sampling      *SamplingParams // as by SetSampling at the start. nil: the session's goes on
}

// Task is a session that the runtime works on by itself: it reads a prompt and writes an answer on the
// runtime's threads, together with all other tasks, and the program fetches events when it likes. Prompts are
// read in pieces between steps in which every task that writes gets its next token. A task gets exactly the
// tokens that the same calls would have given its session alone.
//
// A task waits until its memory fits beside the running ones'. Waiting tasks are admitted by priority, then
// age, and every one is in the end. Running tasks share the time by 2^priority.
//
// Until its task has ended, calls on the session return [ErrBusy], statistics excepted; then it goes on as
// after any call: the answer is part of it. A task whose last reference is dropped is cancelled: keep it until
// it has ended. Its methods may be called from any goroutine.
type Task struct {
	handle  *handle[*C.wi_task]
	uses    *sessionUses
	hook    *logitsHook // of its own sampling; nil: none
	work    *taskWork
	cleanup runtime.Cleanup
}

// taskWork is what a task's handle and the engine's notices share.
type taskWork struct {
	closed chan struct{}
	close  sync.Once

	noticing sync.Mutex
	news     chan struct{} // closed by the next notice

	fetching sync.Mutex // one goroutine at a time polls
	fetched  []Event    // polled, but not taken
	over     bool       // the last event has been polled
}

func (w *taskWork) latest() chan struct{} {
	w.noticing.Lock()
	defer w.noticing.Unlock()
	return w.news
}

// Submit gives the session to the runtime's engine, one thread that the first task starts, and returns at
// once. nil params mean all defaults, which goes on from what the session has. What goes wrong later is the
// task's own error. Errors: [ErrBusy] if the session is in use, by a task too; [ErrState] if it is empty and
// there is no prompt.
func (s *Session) Submit(params *TaskParams) (*Task, error) {
	if params == nil {
		params = &TaskParams{}
	}
	most, err := countOf("TaskParams.MaxTokens", params.MaxTokens)
	if err != nil {
		return nil, err
	}
	c, err := s.handle.beginAlone(never)
	if err != nil {
		return nil, err
	}
	defer c.end()
	var pinned pins
	defer pinned.Unpin()
	p := &C.wi_task_params{
		struct_size:    C.sizeof_wi_task_params,
		priority:       int32Of(params.Priority),
		tokenize_flags: C.uint32_t(params.TokenizeFlags),
		max_tokens:     most,
		notify:         C.wi_task_callback(C.wi_go_notify),
	}
	if tokens := params.Tokens; len(tokens) > 0 {
		p.tokens, p.token_count = tokensOf(tokens)
		pinned.Pin(p.tokens)
	}
	p.text, p.text_length = pinned.text(params.Text)
	t := &Task{uses: s.uses, work: &taskWork{closed: make(chan struct{}), news: make(chan struct{})}}
	p.sampling, t.hook = pinned.sampling(params.Sampling)
	user := newUser(t.work)
	p.notify_user = user
	if t.hook != nil { // before the engine may call it
		s.uses.add(t.hook)
	}
	out := new(*C.wi_task)
	if err := c.check(C.wi_task_submit(s.handle.object, p, out, &c.error)); err != nil {
		s.uses.remove(t.hook)
		t.hook.drop()
		freeUser(user)
		return nil, err
	}
	t.own(*out, s.handle.log, user)
	return t, nil
}

// own gives the task what C has made.
func (t *Task) own(object *C.wi_task, log *logSink, user unsafe.Pointer) {
	keep := []any{t.uses.kept, nil}
	if t.hook != nil {
		keep[1] = t.hook.user
	}
	t.handle = &handle[*C.wi_task]{
		object: object, kind: "task", log: log, keep: keep,
		release: func(object *C.wi_task) {
			end := func() {
				endTask(object) // it may use what the handle keeps until then
				C.wi_task_release(object)
				freeUser(user)
				runtime.KeepAlive(keep)
			}
			if isForEngine() { // as who leaves the task last, and the engine waits for this goroutine
				go end()
			} else {
				end()
			}
		},
	}
	t.cleanup = runtime.AddCleanup(t, func(h *handle[*C.wi_task]) { go h.close() }, t.handle)
}

// endTask cancels a task and waits until it has ended.
func endTask(object *C.wi_task) {
	C.wi_task_cancel(object)
	info := &C.wi_task_info{struct_size: C.sizeof_wi_task_info}
	var events [16]C.wi_event
	for i := range events {
		events[i].struct_size = C.sizeof_wi_event
	}
	for C.wi_task_get_info(object, info, nil) == C.WI_OK && info.state < C.WI_TASK_DONE {
		var ready C.int32_t
		var count C.uint64_t
		C.wi_task_wait(object, -1, &ready, nil)
		C.wi_task_poll(object, &events[0], C.uint64_t(len(events)), &count, nil)
	}
}

//export goNotify
func goNotify(user C.uintptr_t) {
	work := cgo.Handle(user).Value().(*taskWork)
	work.noticing.Lock()
	defer work.noticing.Unlock()
	close(work.news)
	work.news = make(chan struct{})
}

// Close cancels the task if it has not ended, waits until it has, which takes a step of the engine, and gives
// it back. Errors: [ErrState] in a logits callback that the engine waits for; then it has done nothing.
func (t *Task) Close() error {
	if isForEngine() {
		if info, err := t.Info(); err == nil && info.State < TaskDone {
			return errForEngine
		}
	}
	t.cleanup.Stop()
	if t.work != nil {
		t.work.close.Do(func() { close(t.work.closed) })
	}
	t.handle.close()
	return nil
}

var errForEngine = &Error{Code: ErrState, Message: "the engine waits for this callback, which would wait for the engine; Cancel does not"}

// Cancel ends the task within one step of the engine; it has its last event then, and its session is free. A
// task that has ended is left alone.
func (t *Task) Cancel() {
	if t.handle.enter() == nil {
		defer t.handle.leave()
		C.wi_task_cancel(t.handle.object)
	}
}

// Events returns the task's events as they come. The last one is the first that is no [EventToken], or an
// error: that of a task that failed, or [ErrCancelled]. When ctx ends, the task is cancelled. Who stops earlier
// leaves the task as it is, and gets the rest by another call; after the last event there is nothing. In a logits
// callback of a task, which the engine waits for, there is [ErrState] in place of an event that is still to come.
func (t *Task) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			event, ok, err := t.next(ctx)
			if !ok && err == nil {
				return
			}
			if err == nil && (event.Kind == EventCancelled || event.Kind == EventFailed) {
				event, err = Event{}, t.failure(ctx)
			}
			if !yield(event, err) || err != nil || event.Kind != EventToken {
				return
			}
		}
	}
}

// next waits for one event. There are no more if it is not ok.
func (t *Task) next(ctx context.Context) (event Event, ok bool, err error) {
	if ctx == nil {
		return Event{}, false, errNoContext
	}
	ended := ctx.Done()
	for {
		if ended != nil && ctx.Err() != nil { // though there may be events that nobody has taken yet
			t.Cancel()
			ended = nil
		}
		news, event, ok, over, err := t.take()
		if err != nil || ok || over {
			return event, ok, err
		}
		if isForEngine() {
			return Event{}, false, errForEngine
		}
		select {
		case <-news:
		case <-t.work.closed:
		case <-ended:
		}
	}
}

// take takes one event if there is one, and says what tells of the next.
func (t *Task) take() (news chan struct{}, event Event, ok, over bool, err error) {
	c, err := t.handle.begin(never)
	if err != nil {
		return nil, Event{}, false, false, err
	}
	defer c.end()
	work := t.work
	news = work.latest() // before it is looked whether there is something
	work.fetching.Lock()
	defer work.fetching.Unlock()
	if len(work.fetched) == 0 && !work.over {
		if err := t.fetch(c); err != nil {
			return nil, Event{}, false, false, err
		}
	}
	if len(work.fetched) == 0 {
		return news, Event{}, false, work.over, nil
	}
	event = work.fetched[0]
	work.fetched = work.fetched[1:]
	return news, event, true, false, nil
}

// fetch polls events that are there now. work.fetching is held.
func (t *Task) fetch(c *call) error {
	var events [16]C.wi_event
	for i := range events {
		events[i].struct_size = C.sizeof_wi_event
	}
	info, err := t.info(c) // before polling: what has ended then has no more events after these
	if err != nil {
		return err
	}
	count := new(C.uint64_t)
	if err := c.check(C.wi_task_poll(t.handle.object, &events[0], C.uint64_t(len(events)), count, &c.error)); err != nil {
		return err
	}
	for i := range events[:*count] {
		event := eventOf(&events[i])
		t.work.fetched = append(t.work.fetched, event)
		t.work.over = event.Kind != EventToken
	}
	if *count == 0 && info.state >= C.WI_TASK_DONE { // there was no memory for the last event
		t.work.over = true
		t.work.fetched = append(t.work.fetched, Event{Kind: lastKind(TaskState(info.state)), Token: -1})
	}
	if t.work.over {
		return t.finish(c)
	}
	return nil
}

func lastKind(state TaskState) EventKind {
	switch state {
	case TaskDone:
		return EventEnd
	case TaskCancelled:
		return EventCancelled
	}
	return EventFailed
}

// finish is done once, with the last event.
func (t *Task) finish(c *call) error {
	info, err := t.info(c)
	if err != nil {
		return err
	}
	if t.hook != nil && info.queued_ns > 0 {
		t.uses.settle(t.hook)
	}
	if failure := t.callbackFailure(info); failure != nil && failure.panicked != nil {
		panic(failure.panicked)
	}
	return nil
}

// callbackFailure is how the logits callback ended the task, nil if it did not: nothing else makes a task fail
// as cancelled.
func (t *Task) callbackFailure(info *C.wi_task_info) *hookFailure {
	if info.state != C.WI_TASK_FAILED || info.status != C.WI_E_CANCELLED {
		return nil
	}
	hook := t.hook
	if hook == nil {
		if hooks := t.uses.list(); len(hooks) > 0 {
			hook = hooks[len(hooks)-1]
		}
	}
	if hook == nil {
		return nil
	}
	return hook.failure.Load()
}

func (t *Task) info(c *call) (*C.wi_task_info, error) {
	info := &C.wi_task_info{struct_size: C.sizeof_wi_task_info}
	return info, c.check(C.wi_task_get_info(t.handle.object, info, &c.error))
}

// Poll returns the events that have come since the last one was taken, oldest first; it never waits. Events
// end with one that is not [EventToken].
func (t *Task) Poll() ([]Event, error) {
	c, err := t.handle.begin(never)
	if err != nil {
		return nil, err
	}
	defer c.end()
	work := t.work
	work.fetching.Lock()
	defer work.fetching.Unlock()
	for before := -1; !work.over && len(work.fetched) > before; {
		before = len(work.fetched)
		if err := t.fetch(c); err != nil {
			return nil, err
		}
	}
	events := work.fetched
	work.fetched = nil
	return events, nil
}

// Wait waits until there are events to poll, or the task has ended. When ctx ends first, that is
// [ErrCancelled], and the task goes on. Errors: [ErrState] in a logits callback of a task, which the engine waits for.
func (t *Task) Wait(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	for {
		news, ready, err := t.ready()
		if err != nil || ready {
			return err
		}
		if isForEngine() {
			return errForEngine
		}
		select {
		case <-news:
		case <-t.work.closed:
		case <-ctx.Done():
			return cancelledError(ctx, "the wait for the task was cancelled")
		}
	}
}

func (t *Task) ready() (news chan struct{}, ready bool, err error) {
	c, err := t.handle.begin(never)
	if err != nil {
		return nil, false, err
	}
	defer c.end()
	news = t.work.latest()
	t.work.fetching.Lock()
	fetched := len(t.work.fetched) > 0
	t.work.fetching.Unlock()
	var yes C.int32_t
	err = c.check(C.wi_task_wait(t.handle.object, 0, &yes, &c.error))
	return news, fetched || yes != 0, err
}

// FD returns a file descriptor that is readable while there are events to poll, for event loops outside Go's
// own. It is the task's and closed with it: nobody reads or closes it. Errors: [ErrIO] if the system has none
// left.
func (t *Task) FD() (uintptr, error) {
	c, err := t.handle.begin(never)
	if err != nil {
		return 0, err
	}
	defer c.end()
	fd := new(C.int32_t)
	err = c.check(C.wi_task_get_fd(t.handle.object, fd, &c.error))
	return uintptr(*fd), err
}

// TaskState says how far a task is.
type TaskState int32

// The states of a task, in this order.
const (
	TaskQueued    TaskState = C.WI_TASK_QUEUED    // waits for memory
	TaskReading   TaskState = C.WI_TASK_READING   // its prompt
	TaskWriting   TaskState = C.WI_TASK_WRITING   // its answer
	TaskDone      TaskState = C.WI_TASK_DONE      // the answer has ended, or has MaxTokens tokens
	TaskCancelled TaskState = C.WI_TASK_CANCELLED // by Cancel, Close or a context
	TaskFailed    TaskState = C.WI_TASK_FAILED    // TaskInfo.Err says why
)

// String returns the state's name, "writing" for [TaskWriting].
func (s TaskState) String() string {
	return nameOf(int32(s), map[int32]string{
		C.WI_TASK_QUEUED: "queued", C.WI_TASK_READING: "reading", C.WI_TASK_WRITING: "writing",
		C.WI_TASK_DONE: "done", C.WI_TASK_CANCELLED: "cancelled", C.WI_TASK_FAILED: "failed",
	})
}

// TaskInfo is how far a task is.
type TaskInfo struct {
	State          TaskState     // what it waits for or does, or how it has ended
	Err            error         // of a failed task: what a call would have returned
	PromptTokens   int           // 0 while a text is not tokenised yet
	PromptDone     int           // of them: read
	AnswerTokens   int           // written, fetched or not
	QueuedTime     time.Duration // from submission to admission; 0: not admitted yet
	FirstTokenTime time.Duration // from submission to the first token; 0: none yet
}

// Info tells how far the task is.
func (t *Task) Info() (TaskInfo, error) {
	c, err := t.handle.begin(never)
	if err != nil {
		return TaskInfo{}, err
	}
	defer c.end()
	info, err := t.info(c)
	if err != nil {
		return TaskInfo{}, err
	}
	return TaskInfo{
		State:          TaskState(info.state),
		Err:            t.errorOf(info),
		PromptTokens:   int(info.prompt_tokens),
		PromptDone:     int(info.prompt_done),
		AnswerTokens:   int(info.answer_tokens),
		QueuedTime:     time.Duration(info.queued_ns),
		FirstTokenTime: time.Duration(info.first_token_ns),
	}, nil
}

// errorOf is a failed task's error.
func (t *Task) errorOf(info *C.wi_task_info) error {
	if info.state != C.WI_TASK_FAILED {
		return nil
	}
	e := &Error{Code: Code(info.status), Native: int64(info.native_code), Message: C.GoString(&info.message[0])}
	if e.Code == ErrIO && e.Native > 0 {
		e.causes = append(e.causes, syscall.Errno(e.Native))
	}
	if failure := t.callbackFailure(info); failure != nil && failure.err != nil {
		e.causes = append(e.causes, failure.err)
	}
	return e
}

// failure is the error of a task that ended without an answer.
func (t *Task) failure(ctx context.Context) error {
	c, err := t.handle.begin(never)
	if err != nil {
		return err
	}
	defer c.end()
	info, err := t.info(c)
	if err != nil {
		return err
	}
	if err := t.errorOf(info); err != nil {
		return err
	}
	return cancelledError(ctx, "the task was cancelled")
}
