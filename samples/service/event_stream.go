package main

import (
	"encoding/json"
	"net/http"
	"time"
)

// eventStream sends server-sent events, each at once. A client that does not take them in time is given up (endpoint.go).
type eventStream struct {
	to      http.ResponseWriter
	control *http.ResponseController
	begun   bool // the status has been sent: errors are events from now on
	written time.Time
}

func newEventStream(w http.ResponseWriter) *eventStream {
	return &eventStream{to: w, control: http.NewResponseController(w), written: time.Now()}
}

func (s *eventStream) write(line string) error {
	if !s.begun {
		s.begun = true
		s.to.Header().Set("Content-Type", "text/event-stream")
		s.to.Header().Set("Cache-Control", "no-cache")
		s.to.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back
	}
	s.written = time.Now()
	if _, err := s.to.Write([]byte(line + "\n\n")); err != nil {
		return err
	}
	return s.control.Flush()
}

func (s *eventStream) send(event any) error {
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	return s.write("data: " + string(body))
}

// comment is for the connection alone.
func (s *eventStream) comment(text string) error { return s.write(": " + text) }

// alive is a comment where nothing has been said for long.
func (s *eventStream) alive(text string) {
	if time.Since(s.written) >= aliveEvery {
		s.comment(text) // a client that is gone ends its request's context
	}
}

// ended is how a handler's error goes on: as it is while the status can still say it, then as the stream's last event.
func (s *eventStream) ended(err error) error {
	if err == nil || !s.begun {
		return err
	}
	s.fail(err)
	return nil
}

// fail ends the stream with a problem, in the form in which OpenAI's client knows one.
func (s *eventStream) fail(err error) {
	p := problemOf(err)
	if p.status != statusClientGone && s.send(map[string]*problem{"error": p}) == nil {
		s.done()
	}
}

func (s *eventStream) done() { s.write("data: [DONE]") }
