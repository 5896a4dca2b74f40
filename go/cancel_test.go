package waveinfer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"waveinfer"
)

// over is a context that has ended.
func over() context.Context {
	ctx, cancel := context.WithCancel(background)
	cancel()
	return ctx
}

func TestAContextThatHasEndedEndsEveryCall(t *testing.T) {
	r, m := newRuntime(t, nil), openModel(t)
	s := reading(t, m, nil)
	path := filepath.Join(t.TempDir(), "session")
	succeed(t, s.Save(background, path))
	bytes := must(s.SavedBytes())(t)
	kv, keys := filledKV(t, r, 4)
	before := must(s.Tokens())(t)
	for name, call := range map[string]func() error{
		"Open":   func() error { _, err := r.Open(over(), modelPath, nil); return err },
		"Load":   func() error { _, err := m.Load(over(), path, nil); return err },
		"Save":   func() error { return s.Save(over(), path) },
		"SaveTo": func() error { return s.SaveTo(over(), io.Discard) },
		"LoadFrom": func() error {
			_, err := m.LoadFrom(over(), strings.NewReader(strings.Repeat("x", int(bytes))), bytes, nil)
			return err
		},
		"Prefill":     func() error { return s.Prefill(over(), []waveinfer.Token{5}, nil) },
		"AppendText":  func() error { return s.AppendText(over(), sentence, 0, nil) },
		"Decode":      func() error { _, err := s.Decode(over()); return err },
		"Accept":      func() error { _, err := s.Accept(over(), 5); return err },
		"DecodeBatch": func() error { _, err := waveinfer.DecodeBatch(over(), []*waveinfer.Session{s}); return err },
		"ForkAs":      func() error { _, err := s.ForkAs(over(), nil); return err },
		"Attend":      func() error { return kv.Attend(over(), 0, keys, make([]float32, len(keys)), nil) },
	} {
		t.Run(name, func(t *testing.T) { wantError(t, call(), waveinfer.ErrCancelled, context.Canceled) })
	}
	if after := must(s.Tokens())(t); !slices.Equal(before, after) {
		t.Errorf("%d tokens became %d", len(before), len(after))
	}
	must(s.Decode(background))(t)
}

func TestTheCauseOfACancellationIsFound(t *testing.T) {
	s := reading(t, openModel(t), nil)
	why := errors.New("the client went")
	ctx, cancel := context.WithCancelCause(background)
	cancel(why)
	_, err := s.Decode(ctx)
	wantError(t, err, waveinfer.ErrCancelled, context.Canceled, why)
	late, stop := context.WithDeadline(background, time.Unix(1, 0))
	defer stop()
	_, err = s.Decode(late)
	wantError(t, err, waveinfer.ErrCancelled, context.DeadlineExceeded)
}

func TestAContextThatEndsEndsAPrefillWithinATenthOfASecond(t *testing.T) {
	m := openModel(t)
	s := reading(t, m, nil)
	before := must(s.Tokens())(t)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	var fired time.Time
	time.AfterFunc(100*time.Millisecond, func() { fired = time.Now(); cancel() })
	err := s.Prefill(ctx, make([]waveinfer.Token, 200_000), nil)
	took := time.Since(fired)
	wantError(t, err, waveinfer.ErrCancelled, context.Canceled)
	if took > time.Second { // 100 ms is the library's promise; other tests may have the machine
		t.Errorf("it took %v", took)
	}
	if after := must(s.Tokens())(t); !slices.Equal(before, after) {
		t.Errorf("%d tokens became %d", len(before), len(after))
	}
}

func TestAContextThatEndsEndsTheEvents(t *testing.T) {
	s := reading(t, openModel(t), &waveinfer.SessionParams{Sampling: &waveinfer.SamplingParams{Temperature: 5}})
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	events := 0
	for _, err := range s.Events(ctx) {
		if err != nil {
			wantError(t, err, waveinfer.ErrCancelled, context.Canceled)
			break
		}
		if events++; events == 5 {
			cancel()
		}
	}
	if events != 5 {
		t.Errorf("%d events", events)
	}
	must(s.Decode(background))(t)
}

// foreign is a context that is none of Go's own, which hears of its end from a goroutine.
type foreign struct {
	context.Context
	done chan struct{}
}

func (f foreign) Done() <-chan struct{} { return f.done }

func (f foreign) Err() error {
	select {
	case <-f.done:
		return context.Canceled
	default:
		return nil
	}
}

func TestAContextThatEndsTheEventsEndsNoLaterCall(t *testing.T) {
	s := reading(t, openModel(t), nil)
	prompt := len(must(s.Tokens())(t))
	for range 300 {
		ctx := foreign{background, make(chan struct{})}
		var last error
		for _, err := range s.Events(ctx) {
			if last = err; err == nil {
				close(ctx.done)
			}
		}
		wantError(t, last, waveinfer.ErrCancelled, context.Canceled)
		later, cancel := context.WithCancel(background)
		must(s.Decode(later))(t)
		cancel()
		succeed(t, s.Truncate(prompt))
	}
}

func TestContextsThatEndAtAnyMomentLoseNoToken(t *testing.T) {
	m, numbers := openModel(t), random(t)
	s := reading(t, m, nil)
	prompt := len(must(s.Tokens())(t))
	want := written(t, reading(t, m, nil), 100)
	for got := 0; got < len(want); {
		ctx, cancel := context.WithTimeout(background, time.Duration(numbers.IntN(400))*time.Microsecond)
		event, err := s.Decode(ctx)
		cancel()
		if err != nil {
			wantError(t, err, waveinfer.ErrCancelled)
			continue
		}
		if event.Token != want[got] {
			t.Fatalf("token %d is %d, want %d", got, event.Token, want[got])
		}
		got++
	}
	if got := must(s.Tokens())(t)[prompt:]; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestOneContextMayCancelManyCalls(t *testing.T) {
	m := openModel(t)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	var calls sync.WaitGroup
	for range 4 {
		s := reading(t, m, nil)
		calls.Add(1)
		go func() {
			defer calls.Done()
			for {
				if _, err := s.Decode(ctx); err != nil {
					wantError(t, err, waveinfer.ErrCancelled, context.Canceled)
					return
				}
			}
		}()
	}
	time.Sleep(20 * time.Millisecond)
	cancel()
	calls.Wait()
}

// slowly is a reader or writer of a caller who goes away with the second piece.
type slowly struct {
	io.Reader
	pieces int
	leave  func()
}

func (s *slowly) wait() {
	if s.pieces++; s.pieces == 2 {
		s.leave()
	}
	if s.pieces >= 2 {
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *slowly) Read(p []byte) (int, error)  { s.wait(); return s.Reader.Read(p) }
func (s *slowly) Write(p []byte) (int, error) { s.wait(); return len(p), nil }

func TestAContextThatEndsDuringAStreamEndsIt(t *testing.T) {
	m := openModel(t)
	s := reading(t, m, nil)
	succeed(t, s.Prefill(background, make([]waveinfer.Token, 4000), nil))
	var saved bytes.Buffer
	succeed(t, s.SaveTo(background, &saved))
	file := must(os.ReadFile(modelPath))(t)
	for name, call := range map[string]func(ctx context.Context, stream *slowly) error{
		"OpenReader": func(ctx context.Context, stream *slowly) error {
			stream.Reader = bytes.NewReader(file)
			_, err := newRuntime(t, nil).OpenReader(ctx, stream, int64(len(file)), nil)
			return err
		},
		"SaveTo": func(ctx context.Context, stream *slowly) error { return s.SaveTo(ctx, stream) },
		"LoadFrom": func(ctx context.Context, stream *slowly) error {
			stream.Reader = bytes.NewReader(saved.Bytes())
			_, err := m.LoadFrom(ctx, stream, int64(saved.Len()), nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			wantError(t, call(ctx, &slowly{leave: cancel}), waveinfer.ErrCancelled, context.Canceled)
		})
	}
}
