package waveinfer

// #include "callback.h"
import "C"

import (
	"context"
	"log/slog"
	"runtime/cgo"
	"sync/atomic"
	"time"
	"unsafe"
)

// LogLevel says how much a runtime logs.
type LogLevel int32

// What is logged: messages of the level and of those above it.
const (
	LogDefault LogLevel = C.WI_LOG_NONE // LogWarning
	LogError   LogLevel = C.WI_LOG_ERROR
	LogWarning LogLevel = C.WI_LOG_WARNING
	LogInfo    LogLevel = C.WI_LOG_INFO
	LogDebug   LogLevel = C.WI_LOG_DEBUG
)

// logSink is where a runtime's messages go, from whatever thread, until it and all that was made of it is gone.
type logSink struct {
	handler  slog.Handler
	user     unsafe.Pointer
	panicked atomic.Pointer[any]
}

func newLogSink(logger *slog.Logger) *logSink {
	if logger == nil {
		return nil
	}
	sink := &logSink{handler: logger.Handler()}
	sink.user = newUser(sink)
	return sink
}

// raise panics with what the handler panicked with: on a goroutine that has just left C.
func (s *logSink) raise() {
	if s == nil || s.panicked.Load() == nil {
		return
	}
	if panicked := s.panicked.Swap(nil); panicked != nil {
		panic(*panicked)
	}
}

//export goLog
func goLog(user C.uintptr_t, level C.int32_t, message *C.char) {
	sink := cgo.Handle(user).Value().(*logSink)
	text := C.GoString(message)
	panicked := isolate(func() { sink.handle(LogLevel(level), text) })
	if panicked != nil {
		sink.panicked.Store(&panicked)
	}
}

// handle gives the handler a message that no line of Go is the source of. An error of the handler has nowhere
// to go.
func (s *logSink) handle(level LogLevel, message string) {
	to := slog.LevelDebug
	switch level {
	case LogError:
		to = slog.LevelError
	case LogWarning:
		to = slog.LevelWarn
	case LogInfo:
		to = slog.LevelInfo
	}
	ctx := context.Background()
	if s.handler.Enabled(ctx, to) {
		_ = s.handler.Handle(ctx, slog.NewRecord(time.Now(), to, message, 0))
	}
}

//export goLogRelease
func goLogRelease(user unsafe.Pointer) { freeUser(user) }
