package waveinfer

// #cgo pkg-config: waveinfer
// #include <waveinfer.h>
import "C"

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Code says what kind of failure an [Error] is. Codes are errors themselves, for [errors.Is]:
//
//	if errors.Is(err, waveinfer.ErrBudget) { ... }
type Code int32

// The kinds of failures.
const (
	ErrArgument    Code = C.WI_E_ARGUMENT    // an argument is wrong; the message names it and its value
	ErrFormat      Code = C.WI_E_FORMAT      // a file is broken; the message names the field and the offset
	ErrUnsupported Code = C.WI_E_UNSUPPORTED // well-formed, but not something this build can do
	ErrIO          Code = C.WI_E_IO          // the system refused a file operation; its syscall.Errno is wrapped
	ErrMemory      Code = C.WI_E_MEMORY      // the system refused memory
	ErrBudget      Code = C.WI_E_BUDGET      // a byte budget of the runtime or the session would be exceeded
	ErrCancelled   Code = C.WI_E_CANCELLED   // the context ended, or a callback ended the call
	ErrBusy        Code = C.WI_E_BUSY        // another goroutine is inside this session or KV store
	ErrState       Code = C.WI_E_STATE       // the call does not fit the object's state
	ErrMismatch    Code = C.WI_E_MISMATCH    // a saved session of another model or of other parameters
	ErrDevice      Code = C.WI_E_DEVICE      // a device call failed; Error.Native is the driver's code
	ErrDeviceLost  Code = C.WI_E_DEVICE_LOST // a sticky device fault: this runtime is unusable
	ErrInternal    Code = C.WI_E_INTERNAL    // a bug in the library; please report the message
)

// ErrClosed is wrapped by the error of a call on an object that was closed, whose code is [ErrState].
var ErrClosed = errors.New("waveinfer: used after Close")

// Error returns the code's name, "BUDGET" for [ErrBudget].
func (c Code) Error() string { return C.GoString(C.wi_status_name(C.wi_status(c))) }

// Error is what a failed call returns. [errors.Is] finds its Code and what is behind it: a context's error
// and cause, the error of a callback, a reader or a writer, or a [syscall.Errno].
type Error struct {
	Code    Code   // what kind of failure it is
	Native  int64  // an errno or a driver's code; 0: none
	Message string // what went wrong, where and with which value; UTF-8, one line

	causes []error
}

// Error returns the message with the name of its code.
func (e *Error) Error() string { return "waveinfer: " + e.Code.Error() + ": " + e.Message }

// Unwrap returns the code and what is behind the failure.
func (e *Error) Unwrap() []error { return append([]error{e.Code}, e.causes...) }

// newError makes an error out of what C says. callback is what a callback of the call returned.
func newError(ctx context.Context, status C.wi_status, said *C.wi_error, callback error) *Error {
	e := &Error{Code: Code(status), Native: int64(said.native_code), Message: C.GoString(&said.message[0])}
	switch {
	case callback != nil:
		e.causes = append(e.causes, callback)
		e.Message += ": " + callback.Error()
	case e.Code == ErrIO && e.Native > 0:
		e.causes = append(e.causes, syscall.Errno(e.Native))
	case e.Code == ErrCancelled:
		e.causes = contextCauses(ctx)
	}
	return e
}

func cancelledError(ctx context.Context, message string) error {
	return &Error{Code: ErrCancelled, Message: message, causes: contextCauses(ctx)}
}

// contextCauses is why a context has ended; nothing if it has not.
func contextCauses(ctx context.Context) []error {
	if ctx.Err() == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return []error{ctx.Err(), cause}
	}
	return []error{ctx.Err()}
}

func closedError(kind string) error {
	return &Error{Code: ErrState, Message: "the " + kind + " is closed", causes: []error{ErrClosed}}
}

var errNoContext = argumentError("the context is nil")

func argumentError(format string, values ...any) error {
	return &Error{Code: ErrArgument, Message: fmt.Sprintf(format, values...)}
}
