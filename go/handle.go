package waveinfer

import "sync/atomic"

// handle holds one reference to an object in C and counts the calls inside it, so that the reference is given
// back when it has been closed and nobody is inside any more, in whatever order that comes. The types that a
// program sees own a handle each, and their cleanups close it: it does not know them.
type handle[P any] struct {
	object  P
	kind    string // "session", for messages
	release func(P)
	log     *logSink // the runtime's; may be nil
	keep    any      // what C uses of Go's through this object
	calls   atomic.Int64
	busy    atomic.Bool
	end     func() // leaveAlone, made once; for who is alone inside
}

// closed is set in handle.calls beside the number of calls that are still inside.
const closed = 1 << 62

// enter begins a call; leave must follow unless it fails.
func (h *handle[P]) enter() error {
	if h == nil {
		return closedError("object") // a zero value, which was never open
	}
	for {
		calls := h.calls.Load()
		if calls&closed != 0 {
			return closedError(h.kind)
		}
		if h.calls.CompareAndSwap(calls, calls+1) {
			return nil
		}
	}
}

// enterAlone begins a call that must be the only one; leaveAlone must follow unless it fails.
func (h *handle[P]) enterAlone() error {
	if err := h.enter(); err != nil {
		return err
	}
	if !h.busy.CompareAndSwap(false, true) {
		h.leave()
		return &Error{Code: ErrBusy, Message: "another goroutine is inside this " + h.kind}
	}
	return nil
}

func (h *handle[P]) leaveAlone() {
	h.busy.Store(false)
	h.leave()
}

func (h *handle[P]) leave() {
	if h.calls.Add(-1) == closed {
		h.free()
	}
	h.log.raise()
}

func (h *handle[P]) close() {
	for h != nil {
		calls := h.calls.Load()
		if calls&closed != 0 {
			return
		}
		if h.calls.CompareAndSwap(calls, calls|closed) {
			if calls == 0 {
				h.free()
			}
			return
		}
	}
}

func (h *handle[P]) free() {
	h.release(h.object)
	h.keep = nil
}
