package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"waveinfer"
)

// startUnloaded is a service whose only document is not in memory, and has to be read again if its session is spoiled.
func startUnloaded(t *testing.T, sentences int, spoil bool, change func(*options)) (r *running, id string, tokens float64) {
	t.Helper()
	folder := t.TempDir()
	first := start(t, func(o *options) { o.documents = folder })
	id, document := first.read(someText(random(t), sentences))
	first.stop()
	if spoil {
		if err := os.Truncate(sessionFile(first.folder(), id), 1000); err != nil {
			t.Fatal(err)
		}
	}
	return start(t, func(o *options) {
		o.documents = folder
		if change != nil {
			change(o)
		}
	}), id, document["tokens"].(float64)
}

// waiting is how many wait for a document to come back, and how many of its tokens have been read for that.
func (r *running) waiting(id string) (waiting, done int) {
	l := r.service.library
	l.mu.Lock()
	defer l.mu.Unlock()
	if reading := l.readings[id]; reading != nil {
		return reading.waiting, int(reading.done.Load())
	}
	return 0, 0
}

func TestADocumentComesBackThoughItsFirstClientLeaves(t *testing.T) {
	r, id, tokens := startUnloaded(t, 500, true, nil)
	ctx, cancel := context.WithCancel(context.Background())
	go r.send(ctx, "POST", "/v1/documents/"+id+"/ask", object{"question": question})
	eventually(t, "it is read again", func() bool { _, done := r.waiting(id); return done > 0 })
	cancel()
	if got := at(r.ask(id), "choices/0/message/content"); got != fact {
		t.Errorf("the answer is %v", got)
	}
	if read := float64(r.service.metrics.promptTokens.Load()); read > tokens+1000 {
		t.Errorf("%g tokens were read for a document of %g", read, tokens)
	}
}

func TestWhoWaitsForADocumentTakesNoPlaceAtTheGate(t *testing.T) {
	r, id, _ := startUnloaded(t, 500, true, func(o *options) { o.parallel, o.queue = 2, 0 })
	for range 3 {
		go r.askInVain(id)
	}
	eventually(t, "all wait", func() bool { waiting, done := r.waiting(id); return waiting == 3 && done > 0 })
	if running := r.service.engine.gate.running(); running != 1 { // the reading
		t.Errorf("%d are with the engine", running)
	}
	r.post("/v1/chat/completions", chatAbout(fact, question))
}

func TestAStreamSaysThatItIsAliveWhileItsDocumentComesBack(t *testing.T) {
	usual := aliveEvery
	t.Cleanup(func() { aliveEvery = usual }) // once the service has ended
	aliveEvery = time.Millisecond
	r, id, _ := startUnloaded(t, 500, true, nil)
	response := r.begin(context.Background(), "/v1/documents/"+id+"/ask", object{"question": question})
	defer response.Body.Close()
	if _, done := r.waiting(id); done == 0 {
		eventually(t, "it is read again", func() bool { _, done := r.waiting(id); return done > 0 })
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	events, done := eventsOf(t, bytes.NewReader(text))
	if !done || written(events) != fact || at(events[0], "choices/0/delta/role") != "assistant" {
		t.Errorf("the stream is %s", text)
	}
}

func TestADocumentMayBeDeletedWhileItComesBack(t *testing.T) {
	usual := aliveEvery
	t.Cleanup(func() { aliveEvery = usual })
	aliveEvery = time.Millisecond
	r, id, _ := startUnloaded(t, 500, true, nil)
	response := r.begin(context.Background(), "/v1/documents/"+id+"/ask", object{"question": question})
	defer response.Body.Close()
	before := time.Now()
	if status, _ := r.call("DELETE", "/v1/documents/"+id, nil); status != 200 {
		t.Errorf("status %d", status)
	}
	if events, done := eventsOf(t, response.Body); !done || at(events[0], "error/code") != "document_not_found" {
		t.Errorf("done %v, the stream is %v", done, events)
	}
	if took := time.Since(before); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	r.idle()
}

func TestADocumentWaitsForItsMemory(t *testing.T) {
	r, id, _ := startUnloaded(t, 200, false, func(o *options) { o.kvBudget = 24 << 20 })
	held, err := r.service.engine.model.NewSession(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := someText(random(t), 400)
	if err := held.AppendText(context.Background(), text, 0, nil); err != nil {
		t.Fatal(err)
	}
	e := r.service.engine
	if _, err := e.model.Load(context.Background(), sessionFile(r.folder(), id), e.savedSession()); !errors.Is(err, waveinfer.ErrBudget) {
		t.Fatalf("there is room: %v", err)
	}
	go func() {
		eventually(t, "it waits", func() bool { waiting, _ := r.waiting(id); return waiting == 1 })
		time.Sleep(3 * lookAfter)
		held.Close()
	}()
	if got := at(r.ask(id), "choices/0/message/content"); got != fact {
		t.Errorf("the answer is %v", got)
	}
}

// outOfTheWay makes a file one whose name leads to itself: the system cannot open it, and it is not gone.
func outOfTheWay(t *testing.T, file string) (putBack func()) {
	t.Helper()
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, file); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Rename(file+".away", file); err != nil {
			t.Error(err)
		}
	}
}

func TestADocumentThatCannotBeLoadedNowIsNotLost(t *testing.T) {
	r, id, tokens := startUnloaded(t, 50, false, nil)
	for _, file := range []string{textFile(r.folder(), id), sessionFile(r.folder(), id)} {
		putBack := outOfTheWay(t, file)
		status, answer := r.call("POST", "/v1/documents/"+id+"/ask", object{"question": question})
		message, _ := at(answer, "error/message").(string)
		if status != http.StatusServiceUnavailable || at(answer, "error/code") != "document_unavailable" || strings.Contains(message, r.folder()) {
			t.Errorf("%s: status %d, %v", file, status, answer)
		}
		putBack()
	}
	r.ask(id)
	if read := float64(r.service.metrics.promptTokens.Load()); read >= tokens {
		t.Errorf("%g tokens were read: the text was read again", read)
	}
}

func TestADocumentWhoseTextIsGoneIsLost(t *testing.T) {
	r, id, _ := startUnloaded(t, 20, false, nil)
	if err := os.Remove(textFile(r.folder(), id)); err != nil {
		t.Fatal(err)
	}
	if status, answer := r.call("POST", "/v1/documents/"+id+"/ask", object{"question": question}); status != 500 || at(answer, "error/code") != "document_lost" {
		t.Errorf("status %d, %v", status, answer)
	}
}
