package waveinfer_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"waveinfer"
)

// told is what a task tells: its tokens, its text and the kind of its last event.
func told(t testing.TB, task *waveinfer.Task) (tokens []waveinfer.Token, text string, last waveinfer.EventKind) {
	t.Helper()
	for event, err := range task.Events(background) {
		succeed(t, err)
		text += event.Text
		last = event.Kind
		if event.Token >= 0 {
			tokens = append(tokens, event.Token)
		}
	}
	return tokens, text, last
}

func TestATaskWritesWhatItsSessionWouldHaveWritten(t *testing.T) {
	m := openModel(t)
	want := written(t, reading(t, m, nil), 10)
	prompt := must(m.Tokenize(sentence, waveinfer.TokenizeAddBOS))(t)
	for name, params := range map[string]*waveinfer.TaskParams{
		"tokens": {Tokens: prompt, MaxTokens: 10},
		"text":   {Text: sentence, TokenizeFlags: waveinfer.TokenizeAddBOS, MaxTokens: 10},
	} {
		s := newSession(t, m, nil)
		task := must(s.Submit(params))(t)
		got, _, last := told(t, task)
		if !slices.Equal(got, want) || last != waveinfer.EventLimit {
			t.Errorf("%s: %v ending with %d, want %v", name, got, last, want)
		}
		if after := must(s.Tokens())(t); !slices.Equal(after, append(slices.Clone(prompt), want...)) {
			t.Errorf("%s: the session has %v", name, after)
		}
		info := must(task.Info())(t)
		if info.State != waveinfer.TaskDone || info.Err != nil || info.PromptDone != len(prompt) || info.AnswerTokens != 10 || info.FirstTokenTime == 0 {
			t.Errorf("%s: %+v", name, info)
		}
		if again, _, _ := told(t, task); len(again) != 0 {
			t.Errorf("%s: after its end it told %v", name, again)
		}
		task.Close()
	}
}

func TestManyTasksAtOnceWriteWhatEachWouldAlone(t *testing.T) {
	m := openModel(t)
	const tasks = 24
	var answers sync.WaitGroup
	for i := range tasks {
		s := newSession(t, m, nil)
		prompt := sentence[i:]
		task := must(s.Submit(&waveinfer.TaskParams{Text: prompt, MaxTokens: 12, Priority: i % 3}))(t)
		answers.Add(1)
		go func() {
			defer answers.Done()
			defer task.Close()
			var tokens []waveinfer.Token
			for event, err := range task.Events(background) {
				if err != nil {
					t.Error(err)
				}
				if event.Token >= 0 {
					tokens = append(tokens, event.Token)
				}
			}
			alone := must(m.NewSession(nil))(t)
			defer alone.Close()
			if err := alone.AppendText(background, prompt, 0, nil); err != nil {
				t.Error(err)
			}
			for j, token := range tokens {
				event, err := alone.Decode(background)
				if err != nil || event.Token != token {
					t.Errorf("task %d, token %d is %d, alone %d (%v)", i, j, token, event.Token, err)
					return
				}
			}
		}()
	}
	answers.Wait()
}

func TestASessionIsBusyUntilItsTaskHasEnded(t *testing.T) {
	s := reading(t, openModel(t), nil)
	task := must(s.Submit(nil))(t)
	_, err := s.Decode(background)
	wantError(t, err, waveinfer.ErrBusy)
	_, err = s.Submit(nil)
	wantError(t, err, waveinfer.ErrBusy)
	must(s.Stats())(t)
	task.Cancel()
	for _, err := range task.Events(background) {
		if err != nil {
			wantError(t, err, waveinfer.ErrCancelled)
		}
	}
	must(s.Decode(background))(t)
	if info := must(task.Info())(t); info.State != waveinfer.TaskCancelled {
		t.Errorf("%+v", info)
	}
	task.Close()
}

func TestAContextThatEndsCancelsTheTask(t *testing.T) {
	s := reading(t, openModel(t), nil)
	task := must(s.Submit(nil))(t)
	defer task.Close()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(background)
	defer cancel(nil)
	events := 0
	var last error
	for _, err := range task.Events(ctx) {
		if events++; events == 3 {
			cancel(why)
		}
		last = err
	}
	wantError(t, last, waveinfer.ErrCancelled, context.Canceled, why)
	must(s.Decode(background))(t)
}

// Events wait for it, and it looks at its context all the same.
func TestAContextThatEndsCancelsTheTaskOfWhoIsSlower(t *testing.T) {
	m := openModel(t)
	never := []waveinfer.LogitBias{{Token: must(m.Info())(t).EOSToken, Bias: float32(math.Inf(-1))}}
	task := must(reading(t, m, nil).Submit(&waveinfer.TaskParams{Sampling: &waveinfer.SamplingParams{LogitBias: never}}))(t)
	defer task.Close()
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	events := 0
	for _, err := range task.Events(ctx) {
		if err != nil {
			wantError(t, err, waveinfer.ErrCancelled, context.Canceled)
			break
		}
		switch events++; events {
		case 3:
			time.Sleep(200 * time.Millisecond) // many have come since
			cancel()
		case 4:
			for late := time.Now().Add(5 * time.Second); must(task.Info())(t).State != waveinfer.TaskCancelled; time.Sleep(time.Millisecond) {
				if time.Now().After(late) {
					t.Fatal("the task goes on")
				}
			}
		}
	}
	if events < 4 {
		t.Errorf("%d events: there were none that waited", events)
	}
}

func TestClosingATaskFreesItsSessionAtOnce(t *testing.T) {
	s := reading(t, openModel(t), nil)
	for range 20 {
		task := must(s.Submit(&waveinfer.TaskParams{Text: sentence}))(t)
		task.Close()
		must(s.Tokens())(t)
		_, err := task.Info()
		wantError(t, err, waveinfer.ErrClosed)
	}
}

func TestClosingATaskEndsWhoWaitsForIt(t *testing.T) {
	s := newSession(t, openModel(t), nil)
	task := must(s.Submit(&waveinfer.TaskParams{Tokens: make([]waveinfer.Token, 100_000)}))(t)
	waiting := make(chan error, 2)
	go func() { waiting <- task.Wait(background) }()
	go func() {
		for _, err := range task.Events(background) {
			waiting <- err
		}
	}()
	time.Sleep(20 * time.Millisecond)
	task.Close()
	for range 2 {
		wantError(t, <-waiting, waveinfer.ErrClosed)
	}
}

func TestATaskGoesOnWithoutItsSessionsHandle(t *testing.T) {
	m := openModel(t)
	want := written(t, reading(t, m, nil), 8)
	s := reading(t, m, nil)
	task := must(s.Submit(&waveinfer.TaskParams{MaxTokens: 8}))(t)
	defer task.Close()
	s.Close()
	m.Close()
	runtime.GC()
	if got, _, _ := told(t, task); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestADroppedTaskIsCancelledByTheCollector(t *testing.T) {
	s := reading(t, openModel(t), nil)
	must(s.Submit(nil))(t)
	eventually(t, "the session is free", func() bool {
		runtime.GC()
		_, err := s.Tokens()
		return err == nil
	})
}

func TestAFailedTaskSaysWhy(t *testing.T) {
	r := newRuntime(t, &waveinfer.RuntimeParams{KVBudgetBytes: 1_000_000})
	m := must(r.Open(background, modelPath, nil))(t)
	defer m.Close()
	s := newSession(t, m, nil)
	task := must(s.Submit(&waveinfer.TaskParams{Tokens: make([]waveinfer.Token, 20_000)}))(t)
	defer task.Close()
	for _, err := range task.Events(background) {
		wantError(t, err, waveinfer.ErrBudget)
	}
	info := must(task.Info())(t)
	wantError(t, info.Err, waveinfer.ErrBudget)
	if info.State != waveinfer.TaskFailed {
		t.Errorf("%+v", info)
	}
	_, err := s.Submit(nil)
	wantError(t, err, waveinfer.ErrState)
	_, err = s.Submit(&waveinfer.TaskParams{MaxTokens: -1})
	wantError(t, err, waveinfer.ErrArgument)
	_, err = s.Submit(&waveinfer.TaskParams{Priority: 100, Tokens: []waveinfer.Token{1}})
	wantError(t, err, waveinfer.ErrArgument)
}

func TestEventsOfATaskGoOnWhereTheyWereLeft(t *testing.T) {
	m := openModel(t)
	want := written(t, reading(t, m, nil), 30)
	task := must(reading(t, m, nil).Submit(&waveinfer.TaskParams{MaxTokens: 30}))(t)
	defer task.Close()
	var got []waveinfer.Token
	for len(got) < 10 {
		for event, err := range task.Events(background) {
			succeed(t, err)
			got = append(got, event.Token)
			if len(got)%3 == 0 {
				break
			}
		}
	}
	rest, _, _ := told(t, task)
	if got = append(got, rest...); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAPollNeverWaitsAndAWaitEndsWithItsContext(t *testing.T) {
	s := newSession(t, openModel(t), nil)
	long := must(s.Submit(&waveinfer.TaskParams{Tokens: make([]waveinfer.Token, 200_000)}))(t)
	if events := must(long.Poll())(t); len(events) != 0 {
		t.Errorf("it has %v", events)
	}
	ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	wantError(t, long.Wait(ctx), waveinfer.ErrCancelled, context.DeadlineExceeded)
	long.Close()

	short := must(reading(t, openModel(t), nil).Submit(&waveinfer.TaskParams{MaxTokens: 20}))(t)
	defer short.Close()
	fd := must(short.FD())(t)
	var events []waveinfer.Event
	for len(events) == 0 || events[len(events)-1].Kind == waveinfer.EventToken {
		succeed(t, short.Wait(background))
		events = append(events, must(short.Poll())(t)...)
	}
	if len(events) != 21 || events[20].Kind != waveinfer.EventLimit || events[20].Token != -1 {
		t.Errorf("%d events, the last %+v", len(events), events[len(events)-1])
	}
	succeed(t, short.Wait(background)) // it has ended
	var stat syscall.Stat_t
	succeed(t, syscall.Fstat(int(fd), &stat))
}

func TestATasksAnswerIsWholeText(t *testing.T) {
	m := openModel(t)
	prompt := must(m.ChatTokens([]waveinfer.ChatMessage{
		{Role: "user", Content: "The password of Boaz the potter is copper meadow.\n\nWhat is the password of Boaz the potter?"},
	}, &waveinfer.ChatParams{AddGenerationPrompt: true}))(t)
	task := must(newSession(t, m, nil).Submit(&waveinfer.TaskParams{Tokens: prompt}))(t)
	defer task.Close()
	_, text, last := told(t, task)
	if !strings.HasSuffix(text, "copper meadow.") || last != waveinfer.EventEnd {
		t.Errorf("%q ending with %d", text, last)
	}
}
