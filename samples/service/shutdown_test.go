package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestRunningRequestsEndBeforeTheService(t *testing.T) {
	r := start(t, func(o *options) { o.grace = time.Minute })
	body := endless()
	body["max_tokens"] = 200
	response := r.begin(context.Background(), "/v1/completions", body)
	defer response.Body.Close()
	r.stop()
	events, done := eventsOf(t, response.Body)
	if !done || at(events[len(events)-1], "choices/0/finish_reason") != "length" {
		t.Errorf("done %v, the last event is %v", done, events[len(events)-1])
	}
}

func TestStreamsThatOutlastTheGraceEndCleanly(t *testing.T) {
	r := start(t, func(o *options) { o.grace = 100 * time.Millisecond })
	response := r.begin(context.Background(), "/v1/completions", endless())
	defer response.Body.Close()
	whole := make(chan int)
	go func() {
		status, _ := r.call("POST", "/v1/completions", endless())
		whole <- status
	}()
	eventually(t, "two run", func() bool { return r.service.engine.gate.running() == 2 })
	before := time.Now()
	r.stop()
	if took := time.Since(before); took > 4*time.Second {
		t.Errorf("the shutdown took %v", took)
	}
	events, done := eventsOf(t, response.Body)
	if last := events[len(events)-1]; !done || at(last, "error/code") != "shutting_down" {
		t.Errorf("done %v, the last event is %v", done, last)
	}
	if status := <-whole; status != http.StatusServiceUnavailable {
		t.Errorf("who waits for a whole answer gets %d", status)
	}
}

func TestNoNewRequestsWhileTheServiceStops(t *testing.T) {
	r := start(t, nil)
	r.service.stopping.Store(true)
	for _, path := range []string{"/healthz", "/v1/models"} {
		response, err := r.send(context.Background(), "GET", path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 503 || response.Header.Get("Retry-After") == "" {
			t.Errorf("%s: status %d", path, response.StatusCode)
		}
	}
}

func TestTheServiceIsWell(t *testing.T) {
	r := start(t, nil)
	if status, answer := r.call("GET", "/healthz", nil); status != 200 || answer["status"] != "ok" {
		t.Errorf("status %d, %v", status, answer)
	}
}

func TestMetricsAreAsPrometheusReadsThem(t *testing.T) {
	r := start(t, nil)
	id, _ := r.read(someText(random(t), 50))
	r.ask(id)
	r.call("POST", "/v1/chat/completions", "{")
	r.idle()
	response, err := r.send(context.Background(), "GET", "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	line := regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{([a-z_]+="[^"]*",?)+\})? [0-9.e+-]+)$`)
	for _, l := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if !line.MatchString(l) {
			t.Errorf("no metric: %q", l)
		}
	}
	for _, want := range []string{"waveinfer_requests_total{path=\"/v1/documents/{id}/ask\",status=\"200\"} 1\n",
		"waveinfer_requests_total{path=\"/v1/chat/completions\",status=\"400\"} 1\n", "waveinfer_documents 1\n",
		"waveinfer_requests_running 0\n", "waveinfer_first_token_seconds_count 1\n", "waveinfer_coverage_bucket{le=\"+Inf\"} 1\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

func TestThePageNeedsNothingElse(t *testing.T) {
	r := start(t, nil)
	response, err := r.send(context.Background(), "GET", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/html") || regexp.MustCompile(`(src|href)=`).Match(text) {
		t.Errorf("%s: %s", response.Header.Get("Content-Type"), text)
	}
}
