package main

import (
	"context"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

// documentCard is a document as clients see it.
type documentCard struct {
	facts
	Object  string `json:"object"`
	Saved   bool   `json:"saved"`
	Loaded  bool   `json:"loaded"`   // in memory; if not, the next question loads it
	KVBytes uint64 `json:"kv_bytes"` // in memory: keys, values and index
	New     *bool  `json:"new,omitempty"`
}

func (d *document) card() documentCard {
	held := d.held.Load()
	return documentCard{facts: d.facts, Object: "document", Saved: d.saved.Load(), Loaded: held > 0, KVBytes: held}
}

// Bytes that a document's name may have, as a file's: it is kept and listed for as long as the document is.
const mostName = 255

// readDocument is POST /v1/documents: a text as it is, with name and stream in the address, or as JSON.
func (s *service) readDocument(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Text   string `json:"text"`
		Name   string `json:"name"`
		Stream bool   `json:"stream"`
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/json" {
		if err := readJSON(w, r, s.documentBytes, &q); err != nil {
			return err
		}
	} else {
		body, err := readBody(w, r, s.documentBytes)
		if err != nil {
			return err
		}
		q.Text, q.Name, q.Stream = string(body), r.URL.Query().Get("name"), r.URL.Query().Get("stream") == "true"
	}
	if q.Text = strings.TrimSpace(q.Text); q.Text == "" {
		return badRequest("text", "invalid_value", "the document is empty")
	}
	if !utf8.ValidString(q.Text) || strings.ContainsRune(q.Text, 0) {
		return badRequest("text", "invalid_value", "the document is no text in UTF-8")
	}
	if len(q.Name) > mostName {
		return badRequest("name", "invalid_value", "the name has %d bytes, may have %d", len(q.Name), mostName)
	}
	ctx := r.Context()
	if q.Stream {
		return s.streamReading(ctx, w, q.Name, q.Text)
	}
	d, isNew, err := s.library.read(ctx, q.Name, q.Text, func(int, int) {})
	if err != nil {
		return err
	}
	card, status := d.card(), http.StatusOK
	if card.New = &isNew; isNew {
		status = http.StatusCreated
	}
	writeJSON(w, status, card)
	return nil
}

// readingProgress is how far a text has been read.
type readingProgress struct {
	Object string `json:"object"`
	Done   int    `json:"done"`  // tokens
	Total  int    `json:"total"` // 0: it waits for its turn
}

// streamReading sends progress, then the document, then [DONE].
func (s *service) streamReading(ctx context.Context, w http.ResponseWriter, name, text string) error {
	events := newEventStream(w)
	var last readingProgress
	d, isNew, err := s.library.read(ctx, name, text, func(done, total int) {
		now := readingProgress{Object: "document.progress", Done: done, Total: total}
		if now != last || time.Since(events.written) > aliveEvery {
			events.send(now) // a client that is gone ends ctx
			last = now
		}
	})
	if err != nil {
		return events.ended(err)
	}
	card := d.card()
	card.New = &isNew
	if events.send(card) == nil {
		events.done()
	}
	return nil
}

// listDocuments is GET /v1/documents.
func (s *service) listDocuments(w http.ResponseWriter, r *http.Request) error {
	cards := []documentCard{}
	for _, d := range s.library.all() {
		cards = append(cards, d.card())
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": cards})
	return nil
}

// oneDocument is GET /v1/documents/{id}.
func (s *service) oneDocument(w http.ResponseWriter, r *http.Request) error {
	d, err := s.library.get(r.PathValue("id"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d.card())
	return nil
}

// deleteDocument is DELETE /v1/documents/{id}.
func (s *service) deleteDocument(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := s.library.delete(id); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"id": id, "object": "document", "deleted": true})
	return nil
}

// ask is POST /v1/documents/{id}/ask: a conversation of one question. Without a temperature its answer is the
// likeliest one.
func (s *service) ask(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		writing
		Question string `json:"question"`
	}
	if err := readJSON(w, r, s.requestBytes, &q); err != nil {
		return err
	}
	if q.Model != "" {
		if err := s.checkModel(q.Model); err != nil {
			return err
		}
	}
	if strings.TrimSpace(q.Question) == "" {
		return badRequest("question", "missing_parameter", "question is missing")
	}
	return s.answerAbout(w, r, r.PathValue("id"), []message{{Role: "user", Content: content(q.Question)}}, &q.writing, 0)
}

// answerAbout answers a conversation about a document from a fork of its session. Bringing that back into memory takes
// no place at the gate, and a stream says meanwhile that it is alive.
func (s *service) answerAbout(w http.ResponseWriter, r *http.Request, id string, messages []message, q *writing, temperature float32) error {
	sampling, err := q.sampling(temperature)
	if err != nil {
		return err
	}
	d, err := s.library.get(id)
	if err != nil {
		return err
	}
	events := newEventStream(w)
	done, err := s.library.use(r.Context(), d, func(int, int) {
		if q.Stream {
			events.alive("reading the document")
		}
	})
	if err != nil {
		return events.ended(err)
	}
	defer done()
	return s.answer(r.Context(), events, &chatForm, q, sampling, func() (*asked, error) {
		session, text, err := d.ask()
		if err != nil {
			return nil, err
		}
		a := &asked{session: session, param: "messages", most: usualAnswer}
		a.prompt, err = s.engine.aboutTokens(&d.facts, text, messages)
		if err == nil {
			a.read, err = rewind(a)
		}
		if err != nil {
			session.Close()
			return nil, err
		}
		return a, nil
	})
}

// rewind cuts a session back to what it has in common with the prompt, and says how much that is.
func rewind(a *asked) (int, error) {
	have, err := a.session.Tokens()
	if err != nil {
		return 0, err
	}
	same := min(commonPrefix(have, a.prompt), len(a.prompt)-1)
	if same == len(have) {
		return same, nil
	}
	return same, a.session.Truncate(same)
}
