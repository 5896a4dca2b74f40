package waveinfer

// #include <waveinfer.h>
// #include "callback.h"
import "C"

import (
	"context"
	"io"
	"runtime"
	"runtime/cgo"
	"sync"
)

// call is what one call into C needs besides its arguments. They are kept for reuse, so that a decode step
// allocates little more than its event.
type call struct {
	ctx     context.Context
	cancel  *cancel
	borrows bool // cancel belongs to a sequence of calls
	leave   func()
	error   C.wi_error
	event   C.wi_event

	// What C may call back, and where it is done: see serve.
	progress func(done, total uint64) error
	reader   io.Reader
	position uint64 // in reader
	writer   io.Writer
	requests chan func() error
	replies  chan C.int32_t
	callback error // what a callback returned
}

var calls = sync.Pool{New: func() any {
	c := new(call)
	c.error.struct_size = C.sizeof_wi_error
	c.event.struct_size = C.sizeof_wi_event
	return c
}}

// never is the context of calls that cannot be cancelled.
var never = context.Background()

// begin enters a handle for a call; end must follow unless it fails.
func (h *handle[P]) begin(ctx context.Context) (*call, error) {
	if err := h.enter(); err != nil {
		return nil, err
	}
	return newCall(ctx, h.leave)
}

// beginAlone is begin for objects that one goroutine at a time uses.
func (h *handle[P]) beginAlone(ctx context.Context) (*call, error) {
	if err := h.enterAlone(); err != nil {
		return nil, err
	}
	if h.end == nil {
		h.end = h.leaveAlone
	}
	return newCall(ctx, h.end)
}

// newCall makes a call that ends with leave.
func newCall(ctx context.Context, leave func()) (*call, error) {
	c := calls.Get().(*call)
	c.ctx, c.leave = ctx, leave
	var err error
	if c.cancel, err = watch(ctx); err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

func (c *call) end() {
	if !c.borrows {
		c.cancel.end()
	}
	leave := c.leave
	c.ctx, c.cancel, c.borrows, c.leave = nil, nil, false, nil
	c.progress, c.reader, c.position, c.writer = nil, nil, 0, nil
	c.requests, c.replies, c.callback = nil, nil, nil
	calls.Put(c)
	leave()
}

// token is the call's wi_cancel; nil if it cannot be cancelled.
func (c *call) token() *C.wi_cancel {
	if c.cancel == nil {
		return nil
	}
	return c.cancel.token
}

func (c *call) check(status C.wi_status) error {
	if status == C.WI_OK {
		return nil
	}
	return newError(c.ctx, status, &c.error, c.callback)
}

// run makes a C call that calls back if the call has something to be called.
func (c *call) run(f func() C.wi_status) C.wi_status {
	if c.progress == nil && c.reader == nil && c.writer == nil {
		return f()
	}
	return c.serve(f)
}

// serve makes a C call that may call back. The call runs on a goroutine of its own, and this one does what it
// calls back for: so a panic or runtime.Goexit in a callback unwinds no frame of C. It ends the C call, waits
// for that, and goes on.
func (c *call) serve(f func() C.wi_status) C.wi_status {
	c.requests, c.replies = make(chan func() error), make(chan C.int32_t)
	self := cgo.NewHandle(c)
	defer self.Delete()
	var status C.wi_status
	go func() {
		defer close(c.requests)
		runtime.LockOSThread() // which callbacks of this call come from
		defer runtime.UnlockOSThread()
		C.wi_go_begin_callbacks(C.uintptr_t(self))
		status = f()
		C.wi_go_begin_callbacks(0)
	}()
	defer func() { // after a callback that did not return: until the C call has ended
		for range c.requests {
			c.replies <- 1
		}
	}()
	for request := range c.requests {
		c.answer(request)
	}
	return status
}

// answer does what C called back for.
func (c *call) answer(request func() error) {
	reply := C.int32_t(1)
	defer func() { c.replies <- reply }() // whichever way request ends
	if c.callback == nil {
		c.callback = request()
	}
	if c.callback == nil {
		reply = 0
	}
}

// request has the goroutine that serves the call do something, and returns what C wants to hear.
func (c *call) request(f func() error) C.int32_t {
	c.requests <- f
	return <-c.replies
}
