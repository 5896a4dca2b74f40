package main

import (
	"context"
	"time"

	"waveinfer"
)

// answer is a prompt that the engine works on, and what it writes.
type answer struct {
	engine  *engine
	session *waveinfer.Session
	task    *waveinfer.Task
	began   time.Time // it was let through
	prompt  int       // tokens
	cached  int       // of them: read before, as a document
	read    int       // and by this answer, once it is closed

	written int // tokens, with the one that ended the answer
	first   time.Duration
}

// answer gives a prompt to the engine. session has read its first tokens already, and is the answer's from now
// on. began: when the request was let through. Close must follow unless it fails.
func (e *engine) answer(ctx context.Context, session *waveinfer.Session, began time.Time, read int, prompt []waveinfer.Token,
	most int, sampling *waveinfer.SamplingParams) (*answer, error) {
	a := &answer{engine: e, session: session, began: began, prompt: len(prompt), cached: read}
	task, err := e.start(ctx, session, &waveinfer.TaskParams{Tokens: prompt[read:], MaxTokens: most, Sampling: sampling})
	if err != nil {
		session.Close()
		return nil, err
	}
	a.task = task
	return a, nil
}

// close ends the answer if it has not ended, within one step of the engine.
func (a *answer) close() {
	if info, err := a.task.Info(); err == nil {
		a.read = info.PromptDone
	}
	a.task.Close()
	if stats, err := a.session.Stats(); err == nil {
		a.engine.metrics.answered(a, &stats)
	}
	a.session.Close()
}

// piece is what has been written since the last one: a token's text, which may be empty.
type piece struct {
	text   string
	tokens int    // 1, or 0 for the notice that there have been enough
	finish string // of the last one: "stop" or "length"
	err    error  // the answer has failed, or its client is gone
}

// pieces returns an answer's pieces as they come. The channel is closed after the last one, which has a finish
// or an error, or when ctx has ended.
func (a *answer) pieces(ctx context.Context) <-chan piece {
	pieces := make(chan piece)
	go func() {
		defer close(pieces)
		for event, err := range a.task.Events(ctx) {
			p := piece{text: event.Text, err: err}
			if err == nil {
				p.finish = finishOf(event.Kind)
			}
			if err == nil && event.Token >= 0 {
				p.tokens = 1
			}
			select {
			case pieces <- p:
			case <-ctx.Done():
				return
			}
		}
	}()
	return pieces
}

// count is for whoever takes the pieces.
func (a *answer) count(p piece) {
	if a.written == 0 && p.tokens > 0 {
		a.first = time.Since(a.began)
	}
	a.written += p.tokens
}

func finishOf(kind waveinfer.EventKind) string {
	switch kind {
	case waveinfer.EventToken:
		return ""
	case waveinfer.EventLimit:
		return "length"
	}
	return "stop"
}

// usage is what an answer has cost, as OpenAI's API counts.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (a *answer) usage() *usage {
	u := &usage{PromptTokens: a.prompt, CompletionTokens: a.written, TotalTokens: a.prompt + a.written}
	u.PromptDetails.CachedTokens = a.cached
	return u
}

// statistics is what an answer has read of the KV cache so far.
type statistics struct {
	ContextTokens     int     `json:"context_tokens"`
	KVBytes           uint64  `json:"kv_bytes"`      // of the context: keys, values and index
	KVBytesRead       uint64  `json:"kv_bytes_read"` // in all steps together
	Steps             uint64  `json:"steps"`         // decode steps, one for each token
	Coverage          float64 `json:"coverage"`      // estimated share of the attention that was read exactly
	CertifiedCoverage float64 `json:"certified_coverage"`
	FirstTokenSeconds float64 `json:"first_token_seconds"`
	DecodeSeconds     float64 `json:"decode_seconds"`
}

func (a *answer) statistics() *statistics {
	s, err := a.session.Stats()
	if err != nil {
		return nil
	}
	return &statistics{
		ContextTokens: s.Tokens, KVBytes: s.KVBytes, KVBytesRead: s.KVBytesRead, Steps: s.DecodeSteps,
		Coverage: s.EstimatedCoverage, CertifiedCoverage: s.CertifiedCoverage,
		FirstTokenSeconds: a.first.Seconds(), DecodeSeconds: s.DecodeTime.Seconds(),
	}
}
