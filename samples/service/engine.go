package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"waveinfer"
)

// engine is the model and the runtime that works on all requests together: each is a task of it.
type engine struct {
	runtime *waveinfer.Runtime
	model   *waveinfer.Model
	info    waveinfer.ModelInfo
	id      string    // what clients call the model
	opened  time.Time // when the service began
	gate    *gate
	metrics *metrics

	context   int // most tokens of prompt and answer together
	maxTokens int // most tokens of an answer
	session   waveinfer.SessionParams

	// makeRoom lets a document that nobody uses go from memory; false: there is none.
	makeRoom func() bool
}

func openEngine(ctx context.Context, o options, metrics *metrics) (*engine, error) {
	runtime, err := waveinfer.NewRuntime(&waveinfer.RuntimeParams{
		Device:        o.device,
		Threads:       o.threads,
		KVBudgetBytes: uint64(o.kvBudget),
		SpillFolder:   o.spill,
		Log:           slog.Default(),
	})
	if err != nil {
		return nil, err
	}
	model, err := runtime.Open(ctx, o.model, &waveinfer.ModelParams{Weights: o.weights})
	if err != nil {
		runtime.Close()
		return nil, err
	}
	e := &engine{
		runtime: runtime, model: model, id: o.name, opened: time.Now(), metrics: metrics,
		gate:    newGate(o.parallel, o.queue, o.queueTime),
		context: o.context, maxTokens: o.maxTokens,
		session:  waveinfer.SessionParams{SparseReadTokens: o.sparseRead},
		makeRoom: func() bool { return false },
	}
	if o.policy != "" {
		e.session.Policy = &waveinfer.PolicyParams{Name: o.policy}
	}
	if e.info, err = model.Info(); err == nil {
		_, err = model.PlanMemory(&e.session, 1) // which knows the policy, or does not
	}
	if err != nil {
		e.close()
		return nil, err
	}
	if e.context == 0 {
		e.context = e.info.MaxPositions
	}
	return e, nil
}

// savedSession is how a saved session is to be loaded: as new ones are, whatever it was saved as. Zero would be that.
func (e *engine) savedSession() *waveinfer.SessionParams {
	saved := e.session
	if saved.SparseReadTokens == 0 {
		saved.SparseReadTokens = -1
	}
	if saved.Policy == nil {
		saved.Policy = &waveinfer.PolicyParams{Name: "wave"}
	}
	return &saved
}

func (e *engine) close() {
	e.model.Close()
	e.runtime.Close()
}

// mayTake refuses what can never be done: more tokens than the model takes, or than memory has room for with
// nothing else in it.
func (e *engine) mayTake(param string, prompt, answer int) error {
	if prompt+answer > e.context {
		return badRequest(param, "context_length_exceeded",
			"this model's maximum context length is %d tokens; the prompt has %d, and %d are asked for", e.context, prompt, answer)
	}
	plan, err := e.model.PlanMemory(&e.session, prompt+answer)
	if err != nil {
		return err
	}
	if !plan.Fits {
		return badRequest(param, "context_length_exceeded",
			"%d tokens need more memory than the service has; it has room for %d", prompt+answer, plan.MaxTokens)
	}
	return nil
}

// How often a task that waits for memory is looked after, and one that reads a document.
const lookAfter = 100 * time.Millisecond

// start gives a session to the engine and waits until it is worked on: the engine admits a task when all that
// it may come to need by the memory plan is free. Documents that nobody uses make room meanwhile, if that is what it
// waits for: where the engine is busy, a task that has just come waits for its next step.
func (e *engine) start(ctx context.Context, session *waveinfer.Session, params *waveinfer.TaskParams) (*waveinfer.Task, error) {
	stats, err := session.Stats()
	if err != nil {
		return nil, err
	}
	tokens := stats.Tokens + len(params.Tokens) + params.MaxTokens
	task, err := session.Submit(params)
	if err != nil {
		return nil, err
	}
	for late := time.Now().Add(e.gate.queueTime); ; {
		if err = waitFor(ctx, task, lookAfter); err != nil {
			break
		}
		info, err := task.Info()
		if err == nil && info.State == waveinfer.TaskQueued && time.Now().After(late) {
			err = e.noMemory()
		}
		if err != nil {
			task.Close()
			return nil, err
		}
		if info.State != waveinfer.TaskQueued {
			return task, nil
		}
		if e.lacks(session, tokens) || time.Until(late) < e.gate.queueTime/2 {
			e.makeRoom()
		}
	}
	task.Close()
	return nil, err
}

// lacks tells whether there is too little memory for a session to come to so many tokens, beside what is held now: of
// which a part may be its own, or shared with it.
func (e *engine) lacks(session *waveinfer.Session, tokens int) bool {
	plan, err := e.model.PlanMemory(&e.session, tokens)
	if err != nil {
		return true
	}
	own, err := session.Stats()
	if err != nil {
		return true
	}
	stats, err := e.runtime.Stats()
	planned := plan.KVBytes + plan.IndexBytes + plan.SealingBytes
	return err != nil || stats.KVBytes+planned-min(own.KVBytes, planned) > stats.KVBudgetBytes
}

// awaitRoom waits until there is more memory than now: a document has left it, or somebody is done.
func (e *engine) awaitRoom(ctx context.Context, late time.Time) error {
	before, err := e.runtime.Stats()
	for now := before; err == nil && now.KVBytes >= before.KVBytes && !e.makeRoom(); now, err = e.runtime.Stats() {
		if time.Now().After(late) {
			return e.noMemory()
		}
		select {
		case <-time.After(lookAfter):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return err
}

func (e *engine) noMemory() error {
	return tooBusy(e.gate.expected(), "out_of_memory", "others have all the memory; try again later")
}

// waitFor waits until a task has events, or so long.
func waitFor(ctx context.Context, task *waveinfer.Task, most time.Duration) error {
	patience, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := task.Wait(patience)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// read makes a session of tokens, together with what else the engine does. progress is called now and then.
func (e *engine) read(ctx context.Context, tokens []waveinfer.Token, progress func(done, total int)) (*waveinfer.Session, error) {
	if err := e.mayTake("text", len(tokens), 1); err != nil {
		return nil, err
	}
	session, err := e.model.NewSession(&e.session)
	if err != nil {
		return nil, err
	}
	if err := e.readTo(ctx, session, tokens, progress); err != nil {
		session.Close()
		return nil, err
	}
	return session, nil
}

func (e *engine) readTo(ctx context.Context, session *waveinfer.Session, tokens []waveinfer.Token, progress func(done, total int)) error {
	// Its first token costs no step, and goes again.
	task, err := e.start(ctx, session, &waveinfer.TaskParams{Tokens: tokens, MaxTokens: 1})
	if err != nil {
		return err
	}
	defer task.Close()
	done := 0
	defer func() { e.metrics.promptTokens.Add(int64(done)) }()
	for {
		info, err := task.Info()
		if err != nil {
			return err
		}
		done = info.PromptDone
		progress(info.PromptDone, info.PromptTokens)
		switch info.State {
		case waveinfer.TaskDone:
			return session.Truncate(len(tokens))
		case waveinfer.TaskFailed:
			return info.Err
		}
		if err := waitFor(ctx, task, lookAfter); err != nil {
			return err
		}
		if _, err := task.Poll(); err != nil {
			return err
		}
	}
}
