package waveinfer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"

	"waveinfer"
)

var silent = slog.New(slog.DiscardHandler)

func isClosed(err error) bool { return errors.Is(err, waveinfer.ErrClosed) }

// shared is a writer for several goroutines.
type shared struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.text.Write(p)
}

func (s *shared) String() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.text.String()
}

func TestMessagesGoToTheLoggerAtTheirLevel(t *testing.T) {
	var all shared
	logger := slog.New(slog.NewTextHandler(&all, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := newRuntime(t, &waveinfer.RuntimeParams{Log: logger, LogLevel: waveinfer.LogDebug})
	m := must(r.Open(background, modelPath, nil))(t)
	reading(t, m, nil)
	m.Close()
	r.Close()
	if text := all.String(); !strings.Contains(text, "level=INFO") && !strings.Contains(text, "level=DEBUG") {
		t.Errorf("the log is %q", text)
	}
}

func TestNothingAboveTheLevelIsLogged(t *testing.T) {
	var all shared
	logger := slog.New(slog.NewTextHandler(&all, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := newRuntime(t, &waveinfer.RuntimeParams{Log: logger, LogLevel: waveinfer.LogError})
	m := must(r.Open(background, modelPath, nil))(t)
	defer m.Close()
	if text := all.String(); text != "" {
		t.Errorf("the log is %q", text)
	}
}

// bad is a handler that panics, or ends its goroutine.
type bad struct{ end func() }

func (bad) Enabled(context.Context, slog.Level) bool    { return true }
func (b bad) Handle(context.Context, slog.Record) error { b.end(); return nil }
func (b bad) WithAttrs([]slog.Attr) slog.Handler        { return b }
func (b bad) WithGroup(string) slog.Handler             { return b }

func TestAHandlersPanicGoesOnInTheCallThatLogged(t *testing.T) {
	open := func(end func()) (panicked any) {
		r := newRuntime(t, &waveinfer.RuntimeParams{Log: slog.New(bad{end}), LogLevel: waveinfer.LogDebug})
		defer func() { panicked = recover() }()
		m := must(r.Open(background, modelPath, nil))(t)
		m.Close()
		return nil
	}
	if panicked := open(func() { panic(errHost) }); panicked != errHost {
		t.Errorf("it panicked with %v", panicked)
	}
	if panicked := open(runtime.Goexit); panicked != nil {
		t.Errorf("it panicked with %v", panicked)
	}
}
