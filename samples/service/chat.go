package main

import (
	"net/http"
	"time"
)

// chat is POST /v1/chat/completions.
func (s *service) chat(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		writing
		Messages conversation `json:"messages"`
		Document string       `json:"document"` // its id: the conversation is about it
	}
	q.Messages.most = s.engine.context
	if err := readJSON(w, r, s.requestBytes, &q); err != nil {
		return err
	}
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	messages := q.Messages.messages
	if err := checkMessages(messages); err != nil {
		return err
	}
	if q.Document != "" {
		return s.answerAbout(w, r, q.Document, messages, &q.writing, 1)
	}
	sampling, err := q.sampling(1)
	if err != nil {
		return err
	}
	return s.answer(r.Context(), newEventStream(w), &chatForm, &q.writing, sampling, func() (*asked, error) {
		prompt, err := s.engine.chatTokens(messages, time.Now())
		return &asked{prompt: prompt, param: "messages", most: usualAnswer}, err
	})
}
