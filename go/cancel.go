package waveinfer

// #include <waveinfer.h>
import "C"

import (
	"context"
	"runtime"
	"sync"
)

// cancel is a wi_cancel that fires when a context ends. They are kept for reuse, as a call needs one and most
// contexts never end: unused ones go with the garbage.
type cancel struct {
	token *C.wi_cancel
	fire  func() // trigger, made once
	stop  func() bool
	fired chan struct{} // has one element when the token has been triggered by trigger
	hurry bool          // it has been triggered by hasten
}

var cancels sync.Pool

// watch returns what cancels a call when ctx ends; nil if it never ends. end must follow unless it fails.
func watch(ctx context.Context) (*cancel, error) {
	if ctx == nil {
		return nil, errNoContext
	}
	if ctx.Done() == nil {
		return nil, nil
	}
	c, _ := cancels.Get().(*cancel)
	if c == nil {
		var failure C.wi_error
		failure.struct_size = C.sizeof_wi_error
		c = &cancel{fired: make(chan struct{}, 1)}
		c.fire = c.trigger
		if status := C.wi_cancel_create(&c.token, &failure); status != C.WI_OK {
			return nil, newError(ctx, status, &failure, nil)
		}
		runtime.AddCleanup(c, func(token *C.wi_cancel) { C.wi_cancel_release(token) }, c.token)
	}
	if ctx.Err() != nil { // ended before: the call shall not run until another goroutine has said so
		c.trigger()
		c.stop = func() bool { return false }
	} else {
		c.stop = context.AfterFunc(ctx, c.fire)
	}
	return c, nil
}

func (c *cancel) trigger() {
	C.wi_cancel_trigger(c.token)
	c.fired <- struct{}{}
}

// hasten triggers the token for who knows that the context has ended: the goroutine that says so may be late. For the
// goroutine that will call end.
func (c *cancel) hasten() {
	C.wi_cancel_trigger(c.token)
	c.hurry = true
}

func (c *cancel) end() {
	if c == nil {
		return
	}
	stopped := c.stop()
	if !stopped { // triggered, or about to be
		<-c.fired
	}
	if !stopped || c.hurry { // a context that is not Go's own may have ended, and yet be stopped in time
		C.wi_cancel_reset(c.token)
	}
	c.stop, c.hurry = nil, false
	cancels.Put(c)
}
