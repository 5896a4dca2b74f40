package main

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"
)

func TestAClientThatGoesCancelsItsRequest(t *testing.T) {
	r := start(t, nil)
	for _, streams := range []bool{true, false} {
		ctx, cancel := context.WithCancel(context.Background())
		if streams {
			r.begin(ctx, "/v1/completions", endless())
			cancel()
		} else {
			go r.send(ctx, "POST", "/v1/completions", endless())
			eventually(t, "the request runs", func() bool { return r.service.engine.gate.running() == 1 })
			cancel()
		}
		r.idle()
	}
	if written := r.service.metrics.answerTokens.Load(); written >= 2*4096 {
		t.Errorf("%d tokens were written for nobody", written)
	}
}

func TestAClientThatGoesLeavesTheQueue(t *testing.T) {
	r := start(t, func(o *options) { o.parallel, o.queue = 1, 1 })
	first, cancelFirst := context.WithCancel(context.Background())
	defer cancelFirst()
	r.begin(first, "/v1/completions", endless())
	second, cancelSecond := context.WithCancel(context.Background())
	go r.send(second, "POST", "/v1/completions", endless())
	eventually(t, "one waits", func() bool { return r.service.engine.gate.waiting.Load() == 1 })
	cancelSecond()
	eventually(t, "none waits", func() bool { return r.service.engine.gate.waiting.Load() == 0 })
}

func TestAFullQueueIs429(t *testing.T) {
	r := start(t, func(o *options) { o.parallel, o.queue = 1, 1 })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.begin(ctx, "/v1/completions", endless())
	var waiting sync.WaitGroup
	waiting.Add(1)
	go func() {
		defer waiting.Done()
		if status, answer := r.call("POST", "/v1/chat/completions", chatAbout(fact, question)); status != 200 {
			t.Errorf("who waits gets %d, %v", status, answer)
		}
	}()
	eventually(t, "one waits", func() bool { return r.service.engine.gate.waiting.Load() == 1 })

	response, err := r.send(context.Background(), "POST", "/v1/chat/completions", chatAbout(fact, question))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	after, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if response.StatusCode != http.StatusTooManyRequests || err != nil || after < 1 {
		t.Errorf("status %d, Retry-After %q", response.StatusCode, response.Header.Get("Retry-After"))
	}
	cancel()
	waiting.Wait() // and is answered when it is its turn
}

func TestWhoWaitsForTooLongGets429(t *testing.T) {
	r := start(t, func(o *options) { o.parallel, o.queueTime = 1, 50*time.Millisecond })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.begin(ctx, "/v1/completions", endless())
	status, answer := r.call("POST", "/v1/chat/completions", chatAbout(fact, question))
	if status != http.StatusTooManyRequests || at(answer, "error/code") != "queue_time" {
		t.Errorf("status %d, %v", status, answer)
	}
}

func TestManyAreAnsweredTogetherAndEachAsAlone(t *testing.T) {
	r := start(t, nil)
	alone := r.post("/v1/chat/completions", chatAbout(fact, question))
	var all sync.WaitGroup
	for range 24 {
		all.Add(1)
		go func() {
			defer all.Done()
			if status, answer := r.call("POST", "/v1/chat/completions", chatAbout(fact, question)); status != 200 ||
				at(answer, "choices/0/message/content") != at(alone, "choices/0/message/content") {
				t.Errorf("status %d, %v", status, answer)
			}
		}()
	}
	all.Wait()
	r.idle()
}

func TestARequestThatNeverFitsMemoryIsRefused(t *testing.T) {
	r := start(t, func(o *options) { o.kvBudget = 8 << 20 })
	if status, answer := r.call("POST", "/v1/completions", endless()); status != 400 || at(answer, "error/code") != "context_length_exceeded" {
		t.Errorf("status %d, %v", status, answer)
	}
}

func TestARequestWaitsForMemoryButNotForEver(t *testing.T) {
	r := start(t, func(o *options) { o.kvBudget, o.queueTime = 24<<20, 300*time.Millisecond })
	ctx, cancel := context.WithCancel(context.Background())
	r.begin(ctx, "/v1/completions", endless()) // is planned with most of it
	status, answer := r.call("POST", "/v1/completions", endless())
	if status != http.StatusTooManyRequests || at(answer, "error/code") != "out_of_memory" {
		t.Errorf("status %d, %v", status, answer)
	}
	cancel()
	r.idle()
}
