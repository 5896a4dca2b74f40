// Package waveinfer runs long-context language models inside a Go program. It binds libwaveinfer, whose
// header waveinfer.h is the manual of what is computed; this documentation says how it looks in Go.
//
// A session's KV cache is a vector store: what is old is sealed into segments with an index, a decode step
// looks up the few clusters of keys that matter, reads those, and estimates the rest. A program opens a
// model, makes a session, and reads and writes tokens:
//
//	model, err := waveinfer.Open(ctx, "model.gguf", nil)
//	...
//	defer model.Close()
//	session, err := model.NewSession(nil)
//	...
//	defer session.Close()
//	if err := session.AppendText(ctx, "Once upon a time", waveinfer.TokenizeAddBOS, nil); err != nil {
//		return err
//	}
//	most := 64 // tokens
//	for event, err := range session.Events(ctx) {
//		if err != nil {
//			return err
//		}
//		fmt.Print(event.Text)
//		if most--; most == 0 {
//			break
//		}
//	}
//
// # Getting it
//
// The module is part of libwaveinfer's repository and is used from a checkout or from where the library is
// installed; its path has no host to fetch it from. In a program's module:
//
//	go mod edit -require=waveinfer@v0.2.0 -replace=waveinfer=/path/to/waveinfer/go
//
// The library itself is found by pkg-config, as waveinfer.pc says: an installed one just so, another with
// PKG_CONFIG_PATH. One that needs nothing but the C library, so that a program may be taken to where nothing else is
// installed, comes from a checkout by
//
//	cmake -S . -B build -DBUILD_TESTING=OFF && cmake --build build --parallel "$(nproc)"
//	sudo cmake --install build --component bundled
//
// and is the one in the packages that cpack makes in the build folder. A bare cmake --install puts the one there that
// uses the system's own libraries. Programs link either in the same way and find it where it is installed.
//
// Go's build cache does not notice when pkg-config says something else than before, nor when
// another version of the library is installed in the same place: go build -a does. It needs cgo, a C compiler, and
// Go 1.24.
//
// # Defaults
//
// Params are structs whose zero value means default in every field, and nil stands for all defaults. They
// are copied by the call that takes them. Numbers beyond the range of the C field are refused like any other
// that is out of range.
//
// # Errors
//
// A call that fails returns an [*Error]. Its [Code] is one of the library's, to be tested for with
// [errors.Is]: errors.Is(err, waveinfer.ErrBudget). After a failure outputs and objects are as they were,
// unless the call says otherwise, the next call works, and nothing that the failed call allocated is left.
// What was behind a failure is found too: a context's error, a callback's own, the [syscall.Errno] of a file
// operation, so that errors.Is(err, fs.ErrNotExist) says what it should. Every call may return
// [ErrArgument], [ErrMemory] and [ErrInternal], and [ErrClosed] after Close; one of a runtime on a device
// [ErrDevice] and [ErrDeviceLost], too; a call's own text lists the rest.
//
// # Cancellation
//
// Calls that may take long take a [context.Context]. When it ends they return, within 100 ms in a prefill
// and within one layer in a decode step, an error that is [ErrCancelled] and the context's own; the object is
// as it was before the call. A context that has ended before ends a call at once.
//
// # Goroutines
//
// Runtimes and models may be used by any number of goroutines at once. A session and a KV store are used by
// one at a time, not always the same one; a call that finds another one inside returns [ErrBusy] and changes
// nothing. Statistics may be read at any time. Different sessions may run at once. A call occupies the
// thread that it is on while it runs: for more sessions than threads there is [DecodeBatch], and
// [Session.Submit], which lets the runtime work on any number of them.
//
// # Closing
//
// Close gives back what an object holds. Objects may be closed in any order and from any goroutine: what
// was made from an object keeps alive what it needs, and a call that is inside one when it is closed goes on
// to its end. Closing twice does nothing, calls after Close return [ErrClosed]. What is never closed is given
// back when the garbage collector finds it, a session or task that only its own logits callback refers to among
// it; which may be late: it does not know how large these objects are.
//
// # Callbacks
//
// Progress functions, readers, writers and logits callbacks run on the goroutine that made the call, before
// it returns. An error that one returns ends the call and is found in the call's error by [errors.Is]; a
// panic in one, or [runtime.Goexit], ends the call first and then goes on through its caller. They must not
// use the object that the call is on, except for its statistics.
//
// # Memory
//
// Slices and strings are used where they lie, and not after the call has returned. Until then nobody else may write to
// a slice that it was given, nor look at one that it fills; ids are copied before they are checked and used. Only the
// memory of [Runtime.OpenMemory] is used for longer.
//
// # Text
//
// Text is UTF-8 by intent; bytes that are none are taken as they are, and it may contain NUL. Event texts
// are always whole code points. Paths, names, keys and JSON must not contain NUL.
//
// # Units
//
// Names that end in Bytes count bytes; times are of type [time.Duration]. Slices that stand for arrays are
// dense and row-major, and shapes are given from the slowest to the fastest index: (tokens, vocab).
package waveinfer
