package waveinfer_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"waveinfer"
)

var errHost = errors.New("the host's own")

// failing is a reader and a writer that end as they are told.
type failing struct{ end func() error }

func (f failing) Read([]byte) (int, error)  { return 0, f.end() }
func (f failing) Write([]byte) (int, error) { return 0, f.end() }

// endings are the ways in which a callback may end without success.
var endings = map[string]func() error{
	"error":  func() error { return errHost },
	"panic":  func() error { panic(errHost) },
	"Goexit": func() error { runtime.Goexit(); return nil },
}

// calledBack tells how a call ended whose callback ended in one of these ways.
func calledBack(call func() error) (panicked any, finished bool, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = call()
		finished = true
	}()
	<-done
	return panicked, finished, err
}

func TestACallbackThatFailsEndsTheCallAndNothingElse(t *testing.T) {
	r, m := newRuntime(t, nil), openModel(t)
	s := reading(t, m, nil)
	kv, _ := filledKV(t, r, 4)
	file := must(os.ReadFile(modelPath))(t)
	calls := map[string]func(end func() error) error{
		"progress of Open": func(end func() error) error {
			_, err := r.Open(background, modelPath, &waveinfer.ModelParams{Weights: waveinfer.WeightsCopied,
				Progress: func(_, _ uint64) error { return end() }})
			return err
		},
		"progress of Prefill": func(end func() error) error {
			return s.AppendText(background, sentence, 0, &waveinfer.PrefillParams{Progress: func(_, _ uint64) error { return end() }})
		},
		"reader of OpenReader": func(end func() error) error {
			_, err := r.OpenReader(background, io.MultiReader(bytes.NewReader(file[:1<<20]), failing{end}), int64(len(file)), nil)
			return err
		},
		"reader of LoadFrom": func(end func() error) error {
			_, err := m.LoadFrom(background, failing{end}, 1<<20, nil)
			return err
		},
		"reader of LoadKVFrom": func(end func() error) error {
			_, err := r.LoadKVFrom(background, failing{end}, 1<<20, &kvShape)
			return err
		},
		"writer of SaveTo":    func(end func() error) error { return s.SaveTo(background, failing{end}) },
		"writer of KV.SaveTo": func(end func() error) error { return kv.SaveTo(background, failing{end}) },
		"logits of Decode": func(end func() error) error {
			fork := hooked(t, s, func([]float32) error { return end() })
			defer fork.Close()
			_, err := fork.Decode(background)
			return err
		},
		"logits of Events": func(end func() error) error {
			fork := hooked(t, s, func([]float32) error { return end() })
			defer fork.Close()
			for _, err := range fork.Events(background) {
				return err
			}
			return nil
		},
		"logits of DecodeBatch": func(end func() error) error {
			fork := hooked(t, s, func([]float32) error { return end() })
			defer fork.Close()
			_, err := waveinfer.DecodeBatch(background, []*waveinfer.Session{s, fork})
			return err
		},
		"logits of a task": func(end func() error) error {
			fork := must(s.Fork())(t)
			defer fork.Close()
			task := must(fork.Submit(&waveinfer.TaskParams{Sampling: &waveinfer.SamplingParams{
				LogitsCallback: func([]float32) error { return end() },
			}}))(t)
			defer task.Close()
			for _, err := range task.Events(background) {
				return err
			}
			return nil
		},
	}
	before := len(must(s.Tokens())(t))
	for name, call := range calls {
		for ending, end := range endings {
			t.Run(name+": "+ending, func(t *testing.T) {
				panicked, finished, err := calledBack(func() error { return call(end) })
				switch {
				case ending == "error":
					wantError(t, err, errHost)
				case ending == "panic" && panicked != errHost:
					t.Errorf("panicked with %v, returned %v", panicked, err)
				case ending == "Goexit" && name == "logits of a task": // no goroutine of the host was there
					wantError(t, err, waveinfer.ErrCancelled)
				case ending == "Goexit" && (finished || panicked != nil):
					t.Errorf("the goroutine went on with %v, %v", err, panicked)
				}
				if after := len(must(s.Tokens())(t)); after != before {
					t.Errorf("%d tokens became %d", before, after)
				}
			})
		}
	}
	must(s.Decode(background))(t)
	_, err := kv.SavedBytes()
	succeed(t, err)
}

// hooked is a fork with a logits callback.
func hooked(t testing.TB, s *waveinfer.Session, callback func([]float32) error) *waveinfer.Session {
	t.Helper()
	fork := must(s.Fork())(t)
	succeed(t, fork.SetSampling(&waveinfer.SamplingParams{LogitsCallback: callback}))
	return fork
}

// only forbids all tokens but one.
func only(token waveinfer.Token) func([]float32) error {
	return func(logits []float32) error {
		for i := range logits {
			if waveinfer.Token(i) != token {
				logits[i] = float32(math.Inf(-1))
			}
		}
		return nil
	}
}

func TestALogitsCallbackDecidesAndForksInheritIt(t *testing.T) {
	s := hooked(t, reading(t, openModel(t), nil), only(1234))
	fork := must(s.Fork())(t)
	s.Close()
	runtime.GC() // the fork keeps the callback
	again := must(fork.ForkAs(background, nil))(t)
	defer again.Close()
	for range 3 {
		if event := must(fork.Decode(background))(t); event.Token != 1234 {
			t.Errorf("the fork took %d", event.Token)
		}
	}
	for _, event := range must(waveinfer.DecodeBatch(background, []*waveinfer.Session{fork, again}))(t) {
		if event.Token != 1234 {
			t.Errorf("the batch took %d", event.Token)
		}
	}
	succeed(t, fork.SetSampling(nil))
	if event := must(fork.Decode(background))(t); event.Token == 1234 {
		t.Error("the callback is still there")
	}
	fork.Close()
}

func TestATaskHasItsOwnLogitsCallbackOrTheSessions(t *testing.T) {
	s := hooked(t, reading(t, openModel(t), nil), only(77))
	defer s.Close()
	answer := func(sampling *waveinfer.SamplingParams) (tokens []waveinfer.Token) {
		task := must(s.Submit(&waveinfer.TaskParams{MaxTokens: 3, Sampling: sampling}))(t)
		defer task.Close()
		runtime.GC()
		for event, err := range task.Events(background) {
			succeed(t, err)
			if event.Kind == waveinfer.EventToken {
				tokens = append(tokens, event.Token)
			}
		}
		return tokens
	}
	for want, sampling := range map[waveinfer.Token]*waveinfer.SamplingParams{77: nil, 99: {LogitsCallback: only(99)}} {
		fork := must(s.Fork())(t)
		before := s
		s = fork
		for _, token := range answer(sampling) {
			if token != want {
				t.Errorf("took %d, want %d", token, want)
			}
		}
		if event := must(fork.Decode(background))(t); event.Token != want {
			t.Errorf("after the task it took %d, want %d", event.Token, want)
		}
		fork.Close()
		s = before
	}
}

func TestWhatWouldWaitForTheEngineInItsCallbackIsAnError(t *testing.T) {
	m := openModel(t)
	want := written(t, reading(t, m, nil), 5)
	other := must(newSession(t, m, nil).Submit(&waveinfer.TaskParams{Tokens: make([]waveinfer.Token, 100_000)}))(t)
	var task *waveinfer.Task
	given := make(chan struct{})
	var failures []error
	s := hooked(t, reading(t, m, nil), func([]float32) error {
		if <-given; len(failures) > 0 {
			return nil
		}
		for _, of := range []*waveinfer.Task{task, other} {
			failures = append(failures, of.Close(), of.Wait(background))
			for _, err := range of.Events(background) {
				failures = append(failures, err)
			}
		}
		return nil
	})
	task = must(s.Submit(&waveinfer.TaskParams{MaxTokens: 5}))(t)
	close(given)
	eventually(t, "the task has ended", func() bool { return must(task.Info())(t).State >= waveinfer.TaskDone })
	if got, _, last := told(t, task); !slices.Equal(got, want) || last != waveinfer.EventLimit {
		t.Errorf("%v ending with %d, want %v", got, last, want)
	}
	succeed(t, task.Close())
	succeed(t, other.Close())
	if len(failures) != 6 {
		t.Errorf("%d calls have failed, want 6", len(failures))
	}
	for _, err := range failures {
		wantError(t, err, waveinfer.ErrState)
	}
}

func TestACallbackMayLeaveATaskThatIsClosedLast(t *testing.T) {
	m := openModel(t)
	for range 20 { // in most of them Close finds the callback inside
		var task *waveinfer.Task
		given, called := make(chan struct{}), make(chan struct{})
		s := hooked(t, reading(t, m, nil), func([]float32) error {
			<-given
			for first := true; ; first = false {
				if _, err := task.Info(); err != nil {
					return nil
				}
				if first {
					close(called)
				}
			}
		})
		task = must(s.Submit(nil))(t)
		close(given)
		<-called
		succeed(t, task.Close())
		eventually(t, "the engine goes on", func() bool {
			_, err := s.Tokens()
			return err == nil
		})
		succeed(t, s.Close())
	}
}

func TestCallbacksRunOnTheGoroutineThatCalled(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, inside := syscall.Gettid(), 0
	s := newSession(t, openModel(t), nil)
	succeed(t, s.AppendText(background, strings.Repeat(sentence, 2), 0, &waveinfer.PrefillParams{
		ChunkTokens: 16,
		Progress: func(_, _ uint64) error {
			inside++
			if tid := syscall.Gettid(); tid != here {
				t.Errorf("thread %d, not %d", tid, here)
			}
			return nil
		},
	}))
	if inside < 2 {
		t.Errorf("it was called %d times", inside)
	}
}

func TestACallbackMayUseOtherSessions(t *testing.T) {
	m := openModel(t)
	outer, inner := newSession(t, m, nil), hooked(t, reading(t, m, nil), only(5))
	defer inner.Close()
	succeed(t, outer.AppendText(background, sentence, 0, &waveinfer.PrefillParams{
		Progress: func(_, _ uint64) error {
			event, err := inner.Decode(background)
			if event.Token != 5 {
				t.Errorf("took %d", event.Token)
			}
			return err
		},
	}))
}

func TestAReaderThatEndsTooSoonIsAnError(t *testing.T) {
	file := must(os.ReadFile(modelPath))(t)
	_, err := newRuntime(t, nil).OpenReader(background, bytes.NewReader(file[:len(file)/2]), int64(len(file)), nil)
	wantError(t, err, waveinfer.ErrIO, io.ErrUnexpectedEOF)
	_, err = newRuntime(t, nil).OpenReader(background, bytes.NewReader(file), -1, nil)
	wantError(t, err, waveinfer.ErrArgument)
}

func TestANilReaderOrWriterIsAnErrorAndLeavesEverythingUsable(t *testing.T) {
	r := newRuntime(t, nil)
	m := must(r.Open(background, modelPath, nil))(t)
	s := reading(t, m, nil)
	kv, queries := filledKV(t, r, 4)
	calls := map[string]func(reader io.Reader, writer io.Writer) error{
		"Session.SaveTo": func(_ io.Reader, writer io.Writer) error { return s.SaveTo(background, writer) },
		"KV.SaveTo":      func(_ io.Reader, writer io.Writer) error { return kv.SaveTo(background, writer) },
		"Runtime.OpenReader": func(reader io.Reader, _ io.Writer) error {
			_, err := r.OpenReader(background, reader, 1<<20, nil)
			return err
		},
		"Model.LoadFrom": func(reader io.Reader, _ io.Writer) error {
			_, err := m.LoadFrom(background, reader, 1<<20, nil)
			return err
		},
		"Runtime.LoadKVFrom": func(reader io.Reader, _ io.Writer) error {
			_, err := r.LoadKVFrom(background, reader, 1<<20, &kvShape)
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			panicked, _, err := calledBack(func() error { return call(nil, nil) })
			if panicked != nil {
				t.Fatalf("it panicked with %v", panicked)
			}
			wantError(t, err, waveinfer.ErrArgument)
			if !strings.HasSuffix(err.Error(), "er is nil") {
				t.Errorf("it says %q", err)
			}
			// A nil pointer is somebody to call: what its method does comes out as it does of any other.
			panicked, _, err = calledBack(func() error { return call((*strings.Reader)(nil), (*bytes.Buffer)(nil)) })
			if _, isRuntime := panicked.(runtime.Error); !isRuntime {
				t.Errorf("a nil pointer panicked with %v, returned %v", panicked, err)
			}
		})
	}
	must(s.Decode(background))(t)
	attended(t, kv, queries)
	succeed(t, s.Close())
	succeed(t, kv.Close())
	if sessions := must(r.Stats())(t).Sessions; sessions != 0 {
		t.Errorf("%d sessions are held", sessions)
	}
}
