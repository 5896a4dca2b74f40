package waveinfer_test

import (
	"bytes"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"waveinfer"
)

func TestUseAfterCloseIsAnErrorForEveryMethod(t *testing.T) {
	r, m := newRuntime(t, nil), openModel(t)
	s := reading(t, m, nil)
	kv, queries := filledKV(t, r, 4)
	task := must(reading(t, m, nil).Submit(nil))(t)
	closed := map[string]func() error{
		"Runtime.Open":       func() error { _, err := r.Open(background, modelPath, nil); return err },
		"Runtime.OpenMemory": func() error { _, err := r.OpenMemory(background, make([]byte, 8), nil); return err },
		"Runtime.OpenReader": func() error { _, err := r.OpenReader(background, strings.NewReader("x"), 1, nil); return err },
		"Runtime.NewKV":      func() error { _, err := r.NewKV(&kvShape); return err },
		"Runtime.LoadKV":     func() error { _, err := r.LoadKV(background, "x", &kvShape); return err },
		"Runtime.DeviceInfo": func() error { _, err := r.DeviceInfo(); return err },
		"Runtime.Policies":   func() error { _, err := r.Policies(); return err },
		"Runtime.Stats":      func() error { _, err := r.Stats(); return err },
		"Model.Info":         func() error { _, err := m.Info(); return err },
		"Model.Metadata":     func() error { _, err := m.Metadata("x"); return err },
		"Model.MetadataKeys": func() error { _, err := m.MetadataKeys(); return err },
		"Model.TokenInfo":    func() error { _, err := m.TokenInfo(1); return err },
		"Model.Tokenize":     func() error { _, err := m.Tokenize("x", 0); return err },
		"Model.Detokenize":   func() error { _, err := m.Detokenize(nil, 0); return err },
		"Model.ChatRender":   func() error { _, err := m.ChatRender(nil, nil); return err },
		"Model.ChatTokens":   func() error { _, err := m.ChatTokens(nil, nil); return err },
		"Model.PlanMemory":   func() error { _, err := m.PlanMemory(nil, 1); return err },
		"Model.NewSession":   func() error { _, err := m.NewSession(nil); return err },
		"Model.Load":         func() error { _, err := m.Load(background, "x", nil); return err },
		"Model.LoadFrom":     func() error { _, err := m.LoadFrom(background, strings.NewReader("x"), 1, nil); return err },
		"Session.Prefill":    func() error { return s.Prefill(background, nil, nil) },
		"Session.AppendText": func() error { return s.AppendText(background, "x", 0, nil) },
		"Session.Decode":     func() error { _, err := s.Decode(background); return err },
		"Session.Events": func() error {
			for _, err := range s.Events(background) {
				return err
			}
			return nil
		},
		"Session.Accept":      func() error { _, err := s.Accept(background, 1); return err },
		"Session.Logits":      func() error { _, err := s.Logits(background, nil); return err },
		"Session.Tokens":      func() error { _, err := s.Tokens(); return err },
		"Session.Fork":        func() error { _, err := s.Fork(); return err },
		"Session.ForkAs":      func() error { _, err := s.ForkAs(background, nil); return err },
		"Session.Truncate":    func() error { return s.Truncate(0) },
		"Session.SetSampling": func() error { return s.SetSampling(nil) },
		"Session.Stats":       func() error { _, err := s.Stats(); return err },
		"Session.Save":        func() error { return s.Save(background, "x") },
		"Session.SaveTo":      func() error { return s.SaveTo(background, io.Discard) },
		"Session.SavedBytes":  func() error { _, err := s.SavedBytes(); return err },
		"Session.Submit":      func() error { _, err := s.Submit(nil); return err },
		"KV.Append":           func() error { return kv.Append(0, nil, nil) },
		"KV.Seal":             func() error { return kv.Seal() },
		"KV.Attend":           func() error { return kv.Attend(background, 0, queries, queries, nil) },
		"KV.Fork":             func() error { _, err := kv.Fork(); return err },
		"KV.Truncate":         func() error { return kv.Truncate(0) },
		"KV.Stats":            func() error { _, err := kv.Stats(); return err },
		"KV.Save":             func() error { return kv.Save(background, "x") },
		"KV.SaveTo":           func() error { return kv.SaveTo(background, io.Discard) },
		"KV.SavedBytes":       func() error { _, err := kv.SavedBytes(); return err },
		"Task.Poll":           func() error { _, err := task.Poll(); return err },
		"Task.Wait":           func() error { return task.Wait(background) },
		"Task.FD":             func() error { _, err := task.FD(); return err },
		"Task.Info":           func() error { _, err := task.Info(); return err },
		"Task.Events": func() error {
			for _, err := range task.Events(background) {
				return err
			}
			return nil
		},
	}
	for range 2 { // closing twice does nothing
		for _, object := range []io.Closer{s, r, task, kv, m} {
			succeed(t, object.Close())
		}
	}
	task.Cancel()
	for name, call := range closed {
		t.Run(name, func(t *testing.T) { wantError(t, call(), waveinfer.ErrClosed, waveinfer.ErrState) })
	}
}

func TestZeroValuesAreClosed(t *testing.T) {
	_, err := new(waveinfer.Runtime).Open(background, modelPath, nil)
	wantError(t, err, waveinfer.ErrClosed)
	_, err = new(waveinfer.Model).Info()
	wantError(t, err, waveinfer.ErrClosed)
	_, err = new(waveinfer.Session).Decode(background)
	wantError(t, err, waveinfer.ErrClosed)
	_, err = new(waveinfer.Session).Fork()
	wantError(t, err, waveinfer.ErrClosed)
	_, err = new(waveinfer.KV).SavedBytes()
	wantError(t, err, waveinfer.ErrClosed)
	numbers := make([]float32, 16)
	wantError(t, new(waveinfer.KV).Append(0, numbers, numbers), waveinfer.ErrClosed)
	wantError(t, new(waveinfer.KV).Attend(background, 0, numbers, numbers, nil), waveinfer.ErrClosed)
	_, err = new(waveinfer.Task).Poll()
	wantError(t, err, waveinfer.ErrClosed)
	new(waveinfer.Task).Cancel()
	for _, object := range []io.Closer{new(waveinfer.Runtime), new(waveinfer.Model), new(waveinfer.Session), new(waveinfer.KV), new(waveinfer.Task)} {
		succeed(t, object.Close())
	}
}

func TestObjectsMayBeClosedInAnyOrder(t *testing.T) {
	numbers := random(t)
	for range 50 {
		r := must(waveinfer.NewRuntime(&waveinfer.RuntimeParams{Threads: 1}))(t)
		m := must(r.Open(background, modelPath, nil))(t)
		s := must(m.NewSession(nil))(t)
		succeed(t, s.AppendText(background, "In the beginning", 0, nil))
		fork := must(s.Fork())(t)
		task := must(s.Submit(nil))(t)
		kv := must(r.NewKV(&kvShape))(t)
		objects := []io.Closer{r, m, s, fork, task, kv}
		numbers.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		for i, object := range objects {
			succeed(t, object.Close())
			if i == 2 {
				runtime.GC()
			}
			if object != io.Closer(fork) && i < 3 {
				if _, err := fork.Decode(background); err != nil {
					wantError(t, err, waveinfer.ErrClosed)
				}
			}
		}
	}
}

func TestACallGoesOnWhenItsObjectIsClosed(t *testing.T) {
	m := openModel(t)
	s := newSession(t, m, nil)
	succeed(t, s.AppendText(background, strings.Repeat(sentence, 4), 0, &waveinfer.PrefillParams{
		ChunkTokens: 32,
		Progress: func(_, _ uint64) error {
			m.Close()
			return s.Close()
		},
	}))
	_, err := s.Decode(background)
	wantError(t, err, waveinfer.ErrClosed)
}

func TestClosingWhileOthersCallIsSafe(t *testing.T) {
	m := openModel(t)
	for range 20 {
		s := reading(t, m, nil)
		var calls sync.WaitGroup
		for range 4 {
			calls.Add(1)
			go func() {
				defer calls.Done()
				for {
					_, err := s.Decode(background)
					if err == nil {
						_, err = s.Stats()
					}
					if err != nil && isClosed(err) {
						return
					}
				}
			}()
		}
		time.Sleep(time.Millisecond)
		s.Close()
		calls.Wait()
	}
}

func TestTheCollectorLeavesWeightsAloneDuringASessionsLastCall(t *testing.T) {
	r := newRuntime(t, nil)
	logits := func(m *waveinfer.Model, progress func(_, _ uint64) error) []float32 {
		tokens := must(m.Tokenize(sentence, 0))(t)
		rows := make([]float32, len(tokens)*must(m.Info())(t).Vocab)
		s := must(m.NewSession(nil))(t)
		m.Close()
		succeed(t, s.Prefill(background, tokens, &waveinfer.PrefillParams{ChunkTokens: 4, Logits: rows, Progress: progress}))
		return rows
	}
	var garbage [][]byte
	got := logits(must(r.OpenMemory(background, must(os.ReadFile(modelPath))(t), nil))(t), func(_, _ uint64) error {
		runtime.GC()
		time.Sleep(time.Millisecond)
		garbage = append(garbage, bytes.Repeat([]byte{0xff}, 8<<20)) // where the weights would be if they were gone
		return nil
	})
	want := logits(must(r.Open(background, modelPath, nil))(t), func(_, _ uint64) error { return nil })
	if !slices.Equal(got, want) {
		t.Error("the logits are others")
	}
	runtime.KeepAlive(garbage)
}

func TestTheCollectorGivesBackWhatWasNotClosed(t *testing.T) {
	r := newRuntime(t, nil)
	m := must(r.Open(background, modelPath, nil))(t)
	for range 100 {
		s := must(m.NewSession(&waveinfer.SessionParams{Sampling: &waveinfer.SamplingParams{LogitsCallback: only(3)}}))(t)
		succeed(t, s.AppendText(background, "In the beginning", 0, nil))
		must(s.Fork())(t)
	}
	eventually(t, "all sessions are gone", func() bool {
		runtime.GC()
		return must(r.Stats())(t).Sessions == 0
	})
	runtime.KeepAlive(m)
}

func TestTheCollectorGivesBackWhatOnlyItsOwnCallbackRefersTo(t *testing.T) {
	r := newRuntime(t, nil)
	m := must(r.Open(background, modelPath, nil))(t)
	for range 20 {
		var s *waveinfer.Session
		s = must(m.NewSession(&waveinfer.SessionParams{Sampling: &waveinfer.SamplingParams{
			LogitsCallback: func([]float32) error { _, err := s.Stats(); return err },
		}}))(t)
		succeed(t, s.AppendText(background, "In the beginning", 0, nil))
		must(s.Decode(background))(t)
		var task *waveinfer.Task
		given := make(chan struct{})
		task = must(must(s.Fork())(t).Submit(&waveinfer.TaskParams{Sampling: &waveinfer.SamplingParams{
			LogitsCallback: func([]float32) error { <-given; _, err := task.Info(); return err },
		}}))(t)
		close(given)
		must(must(s.Fork())(t).Submit(nil))(t) // with the session's
	}
	eventually(t, "all sessions are gone", func() bool {
		runtime.GC()
		return must(r.Stats())(t).Sessions == 0
	})
	runtime.KeepAlive(m)
}

func TestTheCollectorLeavesACallbackAloneDuringItsSessionsLastCall(t *testing.T) {
	m := openModel(t)
	session := func() *waveinfer.Session {
		s := must(m.NewSession(&waveinfer.SessionParams{Sampling: &waveinfer.SamplingParams{LogitsCallback: only(3)}}))(t)
		succeed(t, s.AppendText(background, "In the beginning", 0, nil))
		return s
	}
	done, collected := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(collected)
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	}()
	for range 50 {
		if event := must(session().Decode(background))(t); event.Token != 3 {
			t.Errorf("a session took %d", event.Token)
		}
		for _, event := range must(waveinfer.DecodeBatch(background, []*waveinfer.Session{session(), session()}))(t) {
			if event.Token != 3 {
				t.Errorf("a batch took %d", event.Token)
			}
		}
	}
	close(done)
	<-collected
}

// grows fails the test if doing something so often takes memory that stays.
func grows(t *testing.T, times int, do func()) {
	t.Helper()
	for range times / 10 {
		do()
	}
	objects, bytes := held(t)
	var objectsAfter, bytesAfter int
	for range 10 { // in pieces as large as the first: of garbage that waits there is no more at a time than there was
		for range times / 10 {
			do()
		}
		objectsAfter, bytesAfter = held(t)
	}
	if grown := bytesAfter - bytes; grown > 8<<20 {
		t.Errorf("%d times took %d bytes", times, grown)
	}
	if grown := objectsAfter - objects; grown > times/10 {
		t.Errorf("%d times left %d objects of Go", times, grown)
	}
}

// held is what this process holds: objects of Go, and bytes in all.
func held(t *testing.T) (objects, bytes int) {
	t.Helper()
	var stats runtime.MemStats
	for range 5 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // cleanups run beside
	}
	runtime.ReadMemStats(&stats)
	return int(stats.HeapObjects), residentBytes(t)
}

func TestTenThousandSessionsLeaveNoMemory(t *testing.T) {
	m := openModel(t)
	sampling := &waveinfer.SamplingParams{LogitsCallback: only(3), Stops: []string{"end"}, LogitBias: []waveinfer.LogitBias{{Token: 1, Bias: 1}}}
	grows(t, 10_000, func() {
		s := must(m.NewSession(&waveinfer.SessionParams{Sampling: sampling}))(t)
		succeed(t, s.Prefill(background, []waveinfer.Token{1, 2, 3}, nil))
		succeed(t, s.Close())
	})
}

func TestFailingCallsLeaveNoMemory(t *testing.T) {
	r := newRuntime(t, nil)
	m := openModel(t)
	empty := newSession(t, m, nil)
	bad := &waveinfer.SamplingParams{LogitsCallback: only(3), TopP: 7, Stops: []string{"end"}}
	data := make([]byte, 4096)
	grows(t, 3000, func() {
		_, err := r.OpenMemory(background, data, nil)
		wantError(t, err, waveinfer.ErrFormat)
		_, err = m.NewSession(&waveinfer.SessionParams{Sampling: bad})
		wantError(t, err, waveinfer.ErrArgument)
		wantError(t, empty.SetSampling(bad), waveinfer.ErrArgument)
		_, err = empty.Submit(&waveinfer.TaskParams{Sampling: bad, Tokens: []waveinfer.Token{1}})
		wantError(t, err, waveinfer.ErrArgument)
		_, err = empty.Decode(over())
		wantError(t, err)
		_, err = m.LoadFrom(background, failing{func() error { return errHost }}, 1<<20, nil)
		wantError(t, err, errHost)
		_, err = waveinfer.NewRuntime(&waveinfer.RuntimeParams{Device: "abacus", Log: silent})
		wantError(t, err, waveinfer.ErrUnsupported)
	})
}

func TestTasksLeaveNoMemory(t *testing.T) {
	s := reading(t, openModel(t), nil)
	prompt := len(must(s.Tokens())(t))
	grows(t, 1000, func() {
		task := must(s.Submit(&waveinfer.TaskParams{MaxTokens: 2, Sampling: &waveinfer.SamplingParams{LogitsCallback: only(3)}}))(t)
		told(t, task)
		succeed(t, task.Close())
		succeed(t, s.Truncate(prompt))
	})
}
