package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// slowClient takes what it is sent when it likes.
type slowClient struct {
	*httptest.ResponseRecorder
	deadline time.Time
	taken    chan struct{} // has one when it is being sent something, and one to go on; nil: it takes all at once
	endless  bool          // something was to be sent without a deadline
}

func (c *slowClient) SetWriteDeadline(deadline time.Time) error {
	c.deadline = deadline
	return nil
}

func (c *slowClient) Write(data []byte) (int, error) {
	if left := time.Until(c.deadline); left <= 0 || left > writeTime {
		c.endless = true
	}
	if c.taken != nil {
		c.taken <- struct{}{}
		<-c.taken
	}
	return c.ResponseRecorder.Write(data)
}

func TestEverythingThatIsSentHasADeadline(t *testing.T) {
	r := start(t, nil)
	handler := r.service.handler()
	chat := `{"model": "needle-f16", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}`
	for _, request := range []*http.Request{
		httptest.NewRequest("GET", "/", nil), httptest.NewRequest("GET", "/metrics", nil), httptest.NewRequest("GET", "/v1/models", nil),
		httptest.NewRequest("GET", "/v1/documents", nil), httptest.NewRequest("GET", "/nothing", nil),
		httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(chat)),
		httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(`{"stream": true, `+chat[1:])),
	} {
		client := &slowClient{ResponseRecorder: httptest.NewRecorder()}
		handler.ServeHTTP(client, request)
		if client.endless || client.Body.Len() == 0 {
			t.Errorf("%s %s: endless %v, %d bytes", request.Method, request.URL.Path, client.endless, client.Body.Len())
		}
	}
}

func TestWhoTakesAWholeAnswerSlowlyHoldsNoPlace(t *testing.T) {
	r := start(t, func(o *options) { o.parallel, o.queue = 1, 0 })
	client := &slowClient{ResponseRecorder: httptest.NewRecorder(), taken: make(chan struct{})}
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		r.service.handler().ServeHTTP(client, httptest.NewRequest("POST", "/v1/completions",
			strings.NewReader(`{"model": "needle-f16", "prompt": "In the beginning"}`)))
	}()
	<-client.taken
	stats, err := r.service.engine.runtime.Stats()
	if running := r.service.engine.gate.running(); err != nil || running > 0 || stats.Sessions > 0 {
		t.Errorf("%d are with the engine, of %d sessions; %v", running, stats.Sessions, err)
	}
	client.taken <- struct{}{}
	<-sending
}

// What nobody reads is waited for no longer than that.
func TestABodyThatDoesNotComeKeepsNoErrorBack(t *testing.T) {
	usual := restTime
	t.Cleanup(func() { restTime = usual }) // once the service has ended
	restTime = 100 * time.Millisecond
	r := start(t, nil)
	connection, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(connection, "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("status %d", response.StatusCode)
	}
}
