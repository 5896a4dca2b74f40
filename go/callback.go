package waveinfer

// #include <stdlib.h>
// #include "callback.h"
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"
)

// newUser makes a user argument that stands for a Go value: memory of C with a handle to it.
func newUser(value any) unsafe.Pointer {
	user := C.malloc(C.size_t(unsafe.Sizeof(cgo.Handle(0))))
	*(*cgo.Handle)(user) = cgo.NewHandle(value)
	return user
}

func freeUser(user unsafe.Pointer) {
	(*(*cgo.Handle)(user)).Delete()
	C.free(user)
}

//export goProgress
func goProgress(id C.uintptr_t, done, total C.uint64_t) C.int32_t {
	c := cgo.Handle(id).Value().(*call)
	return c.request(func() error { return c.progress(uint64(done), uint64(total)) })
}

//export goRead
func goRead(id C.uintptr_t, offset C.uint64_t, to unsafe.Pointer, count C.uint64_t) C.int32_t {
	c := cgo.Handle(id).Value().(*call)
	return c.request(func() error {
		if uint64(offset) != c.position {
			return fmt.Errorf("waveinfer: asked for offset %d of a reader that is at %d", offset, c.position)
		}
		n, err := io.ReadFull(c.reader, unsafe.Slice((*byte)(to), count))
		c.position += uint64(n)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
}

//export goWrite
func goWrite(id C.uintptr_t, from unsafe.Pointer, count C.uint64_t) C.int32_t {
	c := cgo.Handle(id).Value().(*call)
	return c.request(func() error {
		n, err := c.writer.Write(unsafe.Slice((*byte)(from), count))
		if err == nil && uint64(n) != uint64(count) {
			err = io.ErrShortWrite
		}
		return err
	})
}

// logitsHook is the logits callback of sampling parameters that sessions in C hold, also those that inherited
// it. It lives as long as the program has a session or task that may call it.
type logitsHook struct {
	callback func(logits []float32) error // nil: none
	user     *hookUser                    // nil: none
	failure  atomic.Pointer[hookFailure]  // the last one in a task
}

// hookUser is what C calls a hook by. Handles keep it until C has released what may call it. It knows the hook
// weakly: the callback may refer to a session or a task that nothing else does, which is then to be collected.
type hookUser struct {
	user    unsafe.Pointer
	cleanup runtime.Cleanup
}

// hookFailure is how a callback on the engine's thread ended.
type hookFailure struct {
	err      error
	panicked any
}

func newLogitsHook(callback func(logits []float32) error) *logitsHook {
	hook := &logitsHook{callback: callback}
	if callback != nil {
		hook.user = &hookUser{user: newUser(weak.Make(hook))}
		hook.user.cleanup = runtime.AddCleanup(hook.user, freeUser, hook.user.user)
	}
	return hook
}

// drop frees a hook that no session got.
func (hook *logitsHook) drop() {
	if hook != nil && hook.user != nil {
		hook.user.cleanup.Stop()
		freeUser(hook.user.user)
	}
}

//export goLogits
func goLogits(id, user C.uintptr_t, logits *C.float, vocab C.uint64_t) C.int32_t {
	hook := cgo.Handle(user).Value().(weak.Pointer[logitsHook]).Value()
	if hook == nil {
		return 1
	}
	values := unsafe.Slice((*float32)(logits), vocab)
	if id != 0 {
		return cgo.Handle(id).Value().(*call).request(func() error { return hook.callback(values) })
	}
	failure := hookFailure{err: errCallbackEnded} // the engine's thread: nobody waits who could do it
	failure.panicked = isolate(func() {
		defer doForEngine()()
		failure.err = hook.callback(values)
	})
	if failure.err == nil && failure.panicked == nil {
		return 0
	}
	hook.failure.Store(&failure)
	return 1
}

var errCallbackEnded = errors.New("waveinfer: the callback ended its goroutine")

// forEngine has the numbers of the goroutines that an engine's thread waits for: what waits for the engine there
// would wait for itself.
var forEngine sync.Map

// doForEngine says that this goroutine is one of them, until what it returns is called.
func doForEngine() (end func()) {
	self := goroutineNumber()
	forEngine.Store(self, true)
	return func() { forEngine.Delete(self) }
}

func isForEngine() bool {
	_, is := forEngine.Load(goroutineNumber())
	return is
}

// goroutineNumber is what this goroutine's stack traces begin with, the only place where Go tells it.
func goroutineNumber() string {
	var trace [64]byte
	fields := bytes.Fields(trace[:runtime.Stack(trace[:], false)]) // goroutine 18 [running]: ...
	return string(fields[1])
}

// isolate runs f on a goroutine of its own, so that it cannot unwind C, waits, and returns what it panicked with.
func isolate(f func()) (panicked any) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f()
	}()
	<-done
	return panicked
}
