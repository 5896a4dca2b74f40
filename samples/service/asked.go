package main

import (
	"context"
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

// answer answers a request once it is its turn. temperature is where the request has none; ask makes the
// prompt.
func (s *service) answer(w http.ResponseWriter, r *http.Request, f *form, q *writing, temperature float32,
	ask func(ctx context.Context) (*asked, error)) error {
	ctx := r.Context()
	sampling, err := q.sampling(temperature)
	if err != nil {
		return err
	}
	leave, err := s.engine.gate.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	began := time.Now()
	asked, err := ask(ctx)
	if err != nil {
		return err
	}
	a, err := s.begin(ctx, began, asked, q, sampling)
	if err != nil {
		return err
	}
	defer a.close()
	return f.send(ctx, w, a, q)
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
