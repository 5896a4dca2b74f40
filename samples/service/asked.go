package main

import (
	"context"
	"crypto/rand"
	"net/http"
	"time"

	"waveinfer"
)

// usualAnswer is how many tokens an answer may have in a conversation that does not say: memory is planned for
// all of them.
const usualAnswer = 1024

// asked is a prompt, and the session that has read its beginning.
type asked struct {
	prompt  []waveinfer.Token
	param   string             // the field that it came from
	most    int                // tokens of the answer where the request does not say
	session *waveinfer.Session // nil: a new one
	read    int                // tokens of prompt that it has read
}

// answer answers a request once it is its turn; ask makes the prompt. The answer goes where events go, which may have
// begun.
func (s *service) answer(ctx context.Context, events *eventStream, f *form, q *writing, sampling *waveinfer.SamplingParams,
	ask func() (*asked, error)) error {
	whole, err := s.write(ctx, events, f, q, sampling, ask)
	if whole != nil { // who takes it slowly holds neither a place nor memory
		writeJSON(events.to, http.StatusOK, whole)
	}
	return events.ended(err)
}

// write returns the answer, unless it has been sent as a stream.
func (s *service) write(ctx context.Context, events *eventStream, f *form, q *writing, sampling *waveinfer.SamplingParams,
	ask func() (*asked, error)) (*reply, error) {
	leave, err := s.engine.gate.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	began := time.Now()
	asked, err := ask()
	if err != nil {
		return nil, err
	}
	a, err := s.begin(ctx, began, asked, q, sampling)
	if err != nil {
		return nil, err
	}
	defer a.close()
	header := reply{ID: f.id + rand.Text(), Created: time.Now().Unix(), Model: a.engine.id}
	if q.Stream {
		return nil, f.stream(ctx, events, a, q, header)
	}
	return f.gather(ctx, a, q, header)
}

// begin gives a prompt to the engine.
func (s *service) begin(ctx context.Context, began time.Time, asked *asked, q *writing, sampling *waveinfer.SamplingParams) (*answer, error) {
	most, err := q.most(s.engine, asked.param, len(asked.prompt), asked.most)
	if err == nil && asked.session == nil {
		asked.session, err = s.engine.model.NewSession(&s.engine.session)
	}
	if err != nil {
		if asked.session != nil {
			asked.session.Close()
		}
		return nil, err
	}
	return s.engine.answer(ctx, asked.session, began, asked.read, asked.prompt, most, sampling)
}
