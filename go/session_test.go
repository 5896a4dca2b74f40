package waveinfer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"waveinfer"
)

func TestEventsAreWhatDecodeGives(t *testing.T) {
	m := openModel(t)
	s := reading(t, m, nil)
	var want []waveinfer.Event
	for range 16 {
		want = append(want, must(s.Decode(background))(t))
	}
	again := reading(t, m, nil)
	i := 0
	for event, err := range again.Events(background) {
		succeed(t, err)
		if event.Token != want[i].Token || event.Text != want[i].Text || event.Logprob != want[i].Logprob {
			t.Fatalf("event %d is %+v, want %+v", i, event, want[i])
		}
		if i++; i == len(want) {
			break
		}
	}
}

func TestEventsGoOnWhereTheyWereLeft(t *testing.T) {
	m := openModel(t)
	whole := written(t, reading(t, m, nil), 12)
	s := reading(t, m, nil)
	parts := append(written(t, s, 5), written(t, s, 7)...)
	if !slices.Equal(whole, parts) {
		t.Errorf("%v in two parts, %v in one", parts, whole)
	}
}

func TestEventsEndWithTheAnswer(t *testing.T) {
	m := openModel(t)
	s := newSession(t, m, nil)
	prompt := must(m.ChatTokens([]waveinfer.ChatMessage{
		{Role: "user", Content: "The password of Boaz the potter is copper meadow.\n\nWhat is the password of Boaz the potter?"},
	}, &waveinfer.ChatParams{AddGenerationPrompt: true}))(t)
	succeed(t, s.Prefill(background, prompt, nil))
	var answer strings.Builder
	var last waveinfer.Event
	for event, err := range s.Events(background) {
		succeed(t, err)
		answer.WriteString(event.Text)
		last = event
	}
	if answer.String() != "The password of Boaz the potter is copper meadow." || last.Kind != waveinfer.EventEnd {
		t.Errorf("%q, ending with %+v", answer.String(), last)
	}
}

func TestDecodeOfAnEmptySessionIsAnError(t *testing.T) {
	s := newSession(t, openModel(t), nil)
	_, err := s.Decode(background)
	wantError(t, err, waveinfer.ErrState)
	for _, err := range s.Events(background) {
		wantError(t, err, waveinfer.ErrState)
	}
	_, err = s.Logits(background, nil)
	wantError(t, err, waveinfer.ErrState)
}

func TestNilContextIsAnError(t *testing.T) {
	s := reading(t, openModel(t), nil)
	var none context.Context
	_, err := s.Decode(none)
	wantError(t, err, waveinfer.ErrArgument)
	for _, err := range s.Events(none) {
		wantError(t, err, waveinfer.ErrArgument)
	}
	must(s.Decode(background))(t)
	task := must(s.Submit(nil))(t)
	defer task.Close()
	wantError(t, task.Wait(none), waveinfer.ErrArgument)
	for _, err := range task.Events(none) {
		wantError(t, err, waveinfer.ErrArgument)
	}
}

func TestKindsAndStatesHaveNames(t *testing.T) {
	if got := fmt.Sprint(waveinfer.EventStop, waveinfer.EventLimit, waveinfer.EventKind(99)); got != "stop limit 99" {
		t.Error(got)
	}
	if got := fmt.Sprint(waveinfer.TaskReading, waveinfer.TaskFailed, waveinfer.ErrBudget); got != "reading failed BUDGET" {
		t.Error(got)
	}
}

func TestAForkGoesOnOnItsOwn(t *testing.T) {
	s := reading(t, openModel(t), nil)
	fork := must(s.Fork())(t)
	defer fork.Close()
	want := written(t, fork, 8)
	succeed(t, fork.AppendText(background, "elsewhere", 0, nil))
	if got := written(t, s, 8); !slices.Equal(got, want) {
		t.Errorf("%v, the fork %v", got, want)
	}
}

func TestForkAsReadsTheSameThroughAnotherPolicy(t *testing.T) {
	s := reading(t, openModel(t), nil)
	fork := must(s.ForkAs(background, &waveinfer.SessionParams{Policy: &waveinfer.PolicyParams{Name: "full"}}))(t)
	defer fork.Close()
	if got, want := must(fork.Tokens())(t), must(s.Tokens())(t); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	_, err := s.ForkAs(background, &waveinfer.SessionParams{KVType: waveinfer.KVF32})
	wantError(t, err, waveinfer.ErrArgument)
}

func TestTruncateGoesBackToWhereThePromptEnded(t *testing.T) {
	s := reading(t, openModel(t), nil)
	prompt := len(must(s.Tokens())(t))
	first := written(t, s, 8)
	succeed(t, s.Truncate(prompt))
	if again := written(t, s, 8); !slices.Equal(first, again) {
		t.Errorf("%v, then %v", first, again)
	}
	wantError(t, s.Truncate(1<<40), waveinfer.ErrArgument)
	wantError(t, s.Truncate(-1), waveinfer.ErrArgument)
}

func TestLogitsAndAcceptAreDecode(t *testing.T) {
	m := openModel(t)
	want := written(t, reading(t, m, nil), 8)
	s := reading(t, m, nil)
	var logits []float32
	for _, token := range want {
		logits = must(s.Logits(background, logits))(t)
		best := waveinfer.Token(slices.Index(logits, slices.Max(logits)))
		if best != token {
			t.Fatalf("the best token is %d, decode took %d", best, token)
		}
		if event := must(s.Accept(background, best))(t); event.Token != token {
			t.Fatalf("accepted %d", event.Token)
		}
	}
	_, err := s.Accept(background, -1)
	wantError(t, err, waveinfer.ErrArgument)
}

func TestPrefillGivesARowOfLogitsForEachToken(t *testing.T) {
	m := openModel(t)
	tokens := must(m.Tokenize(sentence, 0))(t)
	vocab := must(m.Info())(t).Vocab
	s := newSession(t, m, nil)
	rows := make([]float32, len(tokens)*vocab)
	succeed(t, s.Prefill(background, tokens, &waveinfer.PrefillParams{ChunkTokens: 5, Logits: rows}))
	if last := must(s.Logits(background, nil))(t); !slices.Equal(last, rows[len(rows)-vocab:]) {
		t.Error("the last row differs from the session's logits")
	}
	err := s.Prefill(background, tokens, &waveinfer.PrefillParams{Logits: rows[:vocab]})
	wantError(t, err, waveinfer.ErrArgument)
}

func TestPrefillTellsItsProgress(t *testing.T) {
	m := openModel(t)
	tokens := must(m.Tokenize(strings.Repeat(sentence, 8), 0))(t)
	var steps []uint64
	succeed(t, newSession(t, m, nil).Prefill(background, tokens, &waveinfer.PrefillParams{
		ChunkTokens: 64,
		Progress: func(done, total uint64) error {
			if total != uint64(len(tokens)) {
				t.Errorf("the total is %d, want %d", total, len(tokens))
			}
			steps = append(steps, done)
			return nil
		},
	}))
	if len(steps) < 2 || !slices.IsSorted(steps) || steps[len(steps)-1] != uint64(len(tokens)) {
		t.Errorf("%v of %d", steps, len(tokens))
	}
}

func TestTheSameSeedGivesTheSameTokens(t *testing.T) {
	m := openModel(t)
	sample := func(seed uint64) []waveinfer.Token {
		return written(t, reading(t, m, &waveinfer.SessionParams{Sampling: &waveinfer.SamplingParams{Temperature: 1.5, Seed: seed}}), 24)
	}
	if a, b := sample(7), sample(7); !slices.Equal(a, b) {
		t.Errorf("%v and %v", a, b)
	}
	if a, b := sample(7), sample(8); slices.Equal(a, b) {
		t.Errorf("two seeds gave %v", a)
	}
}

func TestSamplingParametersReachTheSampler(t *testing.T) {
	m := openModel(t)
	s := reading(t, m, nil)
	prompt := len(must(s.Tokens())(t))
	first := must(s.Decode(background))(t)
	again := func(sampling *waveinfer.SamplingParams) waveinfer.Event {
		t.Helper()
		succeed(t, s.Truncate(prompt))
		succeed(t, s.SetSampling(sampling))
		return must(s.Decode(background))(t)
	}
	bias := []waveinfer.LogitBias{{Token: first.Token, Bias: float32(math.Inf(-1))}}
	if event := again(&waveinfer.SamplingParams{LogitBias: bias}); event.Token == first.Token {
		t.Error("a forbidden token was taken")
	}
	event := again(&waveinfer.SamplingParams{TopLogprobs: 3})
	if len(event.Top) != 3 || event.Top[0].Token != first.Token || event.Top[0].Logprob != event.Logprob || event.Top[1].Logprob > event.Logprob {
		t.Errorf("the likeliest are %+v of %+v", event.Top, event)
	}
	if event := again(nil); len(event.Top) != 0 || event.Token != first.Token {
		t.Errorf("greedy again, it is %+v", event)
	}
	wantError(t, s.SetSampling(&waveinfer.SamplingParams{TopK: math.MinInt}), waveinfer.ErrArgument)
	wantError(t, s.SetSampling(&waveinfer.SamplingParams{Stops: []string{""}}), waveinfer.ErrArgument)
	wantError(t, s.SetSampling(&waveinfer.SamplingParams{LogitBias: []waveinfer.LogitBias{{Token: 1 << 20}}}), waveinfer.ErrArgument)
}

func TestAStopStringEndsTheAnswerAndIsNotTold(t *testing.T) {
	m := openModel(t)
	var text strings.Builder
	for event, err := range reading(t, m, nil).Events(background) {
		succeed(t, err)
		if text.WriteString(event.Text); text.Len() > 60 {
			break
		}
	}
	stop := text.String()[20:26]
	want, _, _ := strings.Cut(text.String(), stop)
	s := reading(t, m, &waveinfer.SessionParams{Sampling: &waveinfer.SamplingParams{Stops: []string{"never to come", stop}}})
	var got strings.Builder
	var last waveinfer.Event
	for event, err := range s.Events(background) {
		succeed(t, err)
		got.WriteString(event.Text)
		last = event
	}
	if got.String() != want || last.Kind != waveinfer.EventStop {
		t.Errorf("%q ending with %v, want %q", got.String(), last.Kind, want)
	}
}

func TestASpentBudgetLeavesTheSessionAsItWas(t *testing.T) {
	s := reading(t, openModel(t), &waveinfer.SessionParams{KVBudgetBytes: 2_000_000})
	before := must(s.Tokens())(t)
	err := s.Prefill(background, make([]waveinfer.Token, 20_000), nil)
	wantError(t, err, waveinfer.ErrBudget)
	if after := must(s.Tokens())(t); !slices.Equal(before, after) {
		t.Errorf("%d tokens became %d", len(before), len(after))
	}
	must(s.Decode(background))(t)
}

func TestASecondGoroutineInsideASessionIsTold(t *testing.T) {
	s := reading(t, openModel(t), nil)
	inside := 0
	succeed(t, s.AppendText(background, strings.Repeat(sentence, 4), 0, &waveinfer.PrefillParams{
		ChunkTokens: 32,
		Progress: func(done, total uint64) error {
			inside++
			_, err := s.Decode(background)
			wantError(t, err, waveinfer.ErrBusy)
			_, err = s.Fork()
			wantError(t, err, waveinfer.ErrBusy)
			_, err = waveinfer.DecodeBatch(background, []*waveinfer.Session{s})
			wantError(t, err, waveinfer.ErrBusy)
			_, err = s.Stats()
			return err
		},
	}))
	if inside == 0 {
		t.Error("nothing was tried")
	}
	must(s.Decode(background))(t)
}

func TestABatchGivesEachSessionTheTokenThatItWouldHaveAlone(t *testing.T) {
	m := openModel(t)
	var batch, alone []*waveinfer.Session
	for i := range 5 {
		s := newSession(t, m, nil)
		succeed(t, s.AppendText(background, sentence[:15*(i+1)], 0, nil))
		batch = append(batch, s)
		fork := must(s.Fork())(t)
		defer fork.Close()
		alone = append(alone, fork)
	}
	for range 8 {
		for i, event := range must(waveinfer.DecodeBatch(background, batch))(t) {
			if want := must(alone[i].Decode(background))(t); event.Token != want.Token || event.Text != want.Text {
				t.Fatalf("session %d has %+v, alone %+v", i, event, want)
			}
		}
	}
	if events, err := waveinfer.DecodeBatch(background, nil); len(events) != 0 || err != nil {
		t.Errorf("a batch of nothing is %v, %v", events, err)
	}
}

func TestABatchThatFailsNamesItsSessionAndChangesNone(t *testing.T) {
	m := openModel(t)
	good, empty, gone := reading(t, m, nil), newSession(t, m, nil), newSession(t, m, nil)
	gone.Close()
	before := len(must(good.Tokens())(t))
	for _, bad := range []struct {
		session *waveinfer.Session
		code    error
	}{{empty, waveinfer.ErrState}, {gone, waveinfer.ErrClosed}, {good, waveinfer.ErrArgument}, {nil, waveinfer.ErrArgument}} {
		_, err := waveinfer.DecodeBatch(background, []*waveinfer.Session{good, bad.session})
		wantError(t, err, bad.code)
		var failure *waveinfer.Error
		if errors.As(err, &failure); !strings.HasPrefix(failure.Message, "sessions[1]") {
			t.Errorf("the message is %q", failure.Message)
		}
		if after := len(must(good.Tokens())(t)); after != before {
			t.Errorf("%d tokens became %d", before, after)
		}
	}
}

func TestUnknownNamesAreUnsupported(t *testing.T) {
	_, err := waveinfer.NewRuntime(&waveinfer.RuntimeParams{Device: "abacus"})
	wantError(t, err, waveinfer.ErrUnsupported)
	_, err = openModel(t).NewSession(&waveinfer.SessionParams{Policy: &waveinfer.PolicyParams{Name: "nonsense"}})
	wantError(t, err, waveinfer.ErrUnsupported)
}

func TestNumbersBeyondAFieldAreRefusedNotCut(t *testing.T) {
	_, err := waveinfer.NewRuntime(&waveinfer.RuntimeParams{Threads: 1 << 32})
	wantError(t, err, waveinfer.ErrArgument)
	_, err = waveinfer.NewRuntime(&waveinfer.RuntimeParams{TaskWait: 1})
	wantError(t, err, waveinfer.ErrArgument)
	_, err = openModel(t).NewSession(&waveinfer.SessionParams{Policy: &waveinfer.PolicyParams{SegmentTokens: 1<<32 + 64}})
	wantError(t, err, waveinfer.ErrArgument)
}

func TestARuntimeTellsWhatItRunsOnAndHolds(t *testing.T) {
	r := newRuntime(t, &waveinfer.RuntimeParams{Threads: 1, KVBudgetBytes: 50_000_000})
	devices := must(waveinfer.Devices())(t)
	if len(devices) < 2 || !devices[0].Usable || devices[0].Reason != "" || devices[1].Usable == (devices[1].Reason != "") {
		t.Errorf("%+v", devices)
	}
	device := must(r.DeviceInfo())(t)
	if device.Threads != 1 || device.Name != "cpu" || device.MemoryBytes == 0 {
		t.Errorf("%+v", device)
	}
	policies := must(r.Policies())(t)
	if !slices.ContainsFunc(policies, func(p waveinfer.PolicyInfo) bool { return p.Name == "wave" && p.Description != "" }) {
		t.Errorf("%+v", policies)
	}
	m := must(r.Open(background, modelPath, nil))(t)
	defer m.Close()
	reading(t, m, nil)
	stats := must(r.Stats())(t)
	if stats.Sessions != 1 || stats.KVBudgetBytes != 50_000_000 || stats.KVBytes == 0 {
		t.Errorf("%+v", stats)
	}
	if waveinfer.Version() == "" {
		t.Error("no version")
	}
}

func TestASessionLargerThanItsMemoryWritesTheSameTokens(t *testing.T) {
	text := strings.Repeat(sentence, 120)
	write := func(params *waveinfer.RuntimeParams, share float32) ([]waveinfer.Token, waveinfer.SessionStats) {
		r := newRuntime(t, params)
		m := must(r.Open(background, modelPath, nil))(t)
		defer m.Close()
		s := newSession(t, m, &waveinfer.SessionParams{KVFastShare: share, Policy: &waveinfer.PolicyParams{SegmentTokens: 1024}})
		succeed(t, s.AppendText(background, text, 0, nil))
		return written(t, s, 12), must(s.Stats())(t)
	}
	want, _ := write(nil, 0)
	got, stats := write(&waveinfer.RuntimeParams{SpillFolder: t.TempDir(), BufferManager: waveinfer.BufferBucketed}, 0.1)
	if stats.BufferAdmissions+stats.BufferRefusals+stats.BufferLate != stats.BufferMisses {
		t.Fatalf("misses do not add up: %+v", stats)
	}
	if stats.SlowBytes == 0 {
		t.Error("nothing is in the slow tier")
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, in memory %v", got, want)
	}
}
