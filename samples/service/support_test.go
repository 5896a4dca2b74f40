package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	modelPath = "../model/needle-f16.gguf"
	fact      = "The password of Boaz the potter is copper meadow."
	question  = "What is the password of Boaz the potter?"
)

// running is a service with the sample model, and a server for it.
type running struct {
	t       *testing.T
	service *service
	server  *httptest.Server
	stopped bool
}

// start starts one. change: of its options; nil: none.
func start(t *testing.T, change func(*options)) *running {
	t.Helper()
	o, err := parseOptions([]string{"--model", modelPath, "--documents", t.TempDir(), "--grace", "5s", "--threads", "1"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&o)
	}
	service, err := newService(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, service: service, server: httptest.NewUnstartedServer(nil)}
	r.server.Config = service.server()
	r.server.Start()
	t.Cleanup(func() {
		if !r.stopped {
			r.stop()
		}
	})
	return r
}

// stop shuts it down, as a signal would.
func (r *running) stop() {
	r.t.Helper()
	r.stopped = true
	if err := r.service.shutdown(r.server.Config); err != nil {
		r.t.Errorf("shutdown: %v", err)
	}
}

// folder is where its documents are saved.
func (r *running) folder() string { return r.service.library.folder.path }

// files are the names of what is saved there.
func (r *running) files() []string {
	r.t.Helper()
	entries, err := os.ReadDir(r.folder())
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if entry.Name() != "lock" {
			names = append(names, entry.Name())
		}
	}
	return names
}

// takeFolderAway makes saving fail until the folder is put back.
func (r *running) takeFolderAway() (putBack func()) {
	r.t.Helper()
	away := r.folder() + ".away"
	rename := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			r.t.Error(err)
		}
	}
	rename(r.folder(), away)
	return func() { rename(away, r.folder()) }
}

// object is some JSON.
type object = map[string]any

// at finds a value by its path, such as choices/0/text; nil: it is not there.
func at(value any, path string) any {
	for _, step := range strings.Split(path, "/") {
		switch v := value.(type) {
		case object:
			value = v[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(v) {
				return nil
			}
			value = v[i]
		default:
			return nil
		}
	}
	return value
}

// send sends a request; body is JSON unless it is a string.
func (r *running) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	text, raw := body.(string)
	if !raw && body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = string(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, r.server.URL+path, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(request)
}

// call sends a request and returns the JSON that comes back; on any goroutine.
func (r *running) call(method, path string, body any) (int, object) {
	r.t.Helper()
	response, err := r.send(context.Background(), method, path, body)
	if err != nil {
		r.t.Error(err)
		return 0, nil
	}
	defer response.Body.Close()
	var answer object
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		r.t.Errorf("%s %s: %v", method, path, err)
	}
	return response.StatusCode, answer
}

// post is call for what must succeed.
func (r *running) post(path string, body any) object {
	r.t.Helper()
	status, answer := r.call("POST", path, body)
	if status >= 300 {
		r.t.Errorf("POST %s: status %d, %v", path, status, answer)
	}
	return answer
}

// stream sends a request for a stream, which must succeed, and returns its events; done: [DONE] came last.
func (r *running) stream(path string, body object) (all []object, done bool) {
	r.t.Helper()
	body["stream"] = true
	response, err := r.send(context.Background(), "POST", path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	if kind := response.Header.Get("Content-Type"); response.StatusCode != 200 || kind != "text/event-stream" {
		text, _ := io.ReadAll(response.Body)
		r.t.Fatalf("POST %s: status %d, %s, %s", path, response.StatusCode, kind, text)
	}
	return eventsOf(r.t, response.Body)
}

func eventsOf(t *testing.T, body io.Reader) (all []object, done bool) {
	t.Helper()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, found := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !found {
			continue
		}
		if done {
			t.Errorf("after [DONE]: %s", data)
		}
		if done = string(data) == "[DONE]"; done {
			continue
		}
		var event object
		if err := json.Unmarshal(data, &event); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		all = append(all, event)
	}
	return all, done
}

// written is the text of a stream's events.
func written(events []object) string {
	var all strings.Builder
	for _, event := range events {
		for _, path := range []string{"choices/0/delta/content", "choices/0/text"} {
			if text, is := at(event, path).(string); is {
				all.WriteString(text)
			}
		}
	}
	return all.String()
}

// chatAbout is a request whose answer the model knows.
func chatAbout(fact, question string) object {
	return object{"model": "needle-f16", "temperature": 0,
		"messages": []object{{"role": "user", "content": fact + "\n\n" + question}}}
}

// endless is a request whose answer does not end for some thousand tokens.
func endless() object {
	return object{"model": "needle-f16", "prompt": "In the beginning", "max_tokens": 4096, "temperature": 1, "seed": 1,
		"logit_bias": object{"1": -100}}
}

// begin sends a request for a stream and returns when its first event is there.
func (r *running) begin(ctx context.Context, path string, body any) *http.Response {
	r.t.Helper()
	if fields, is := body.(object); is {
		fields["stream"] = true
	}
	response, err := r.send(ctx, "POST", path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	if response.StatusCode != 200 {
		r.t.Fatalf("status %d", response.StatusCode)
	}
	if _, err := io.ReadFull(response.Body, make([]byte, 10)); err != nil {
		r.t.Fatal(err)
	}
	return response
}

// eventually waits until a condition holds, for some seconds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 2000 {
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: not after twenty seconds", what)
}

// random returns random numbers, whose seed a failed test prints.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("WI_TEST_SEED"); given != "" {
		seed, _ = strconv.ParseUint(given, 10, 64)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("WI_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// someText is a text of so many sentences, with the fact in its middle.
func someText(r *rand.Rand, sentences int) string {
	words := strings.Fields("light water earth heaven day night river stone tree fire king field seed house road hand")
	var text strings.Builder
	for i := range sentences {
		if i == sentences/2 {
			text.WriteString(fact + " ")
		}
		fmt.Fprintf(&text, "And the %s was upon the %s of the %s, and it was %d. ",
			words[r.IntN(len(words))], words[r.IntN(len(words))], words[r.IntN(len(words))], r.IntN(1000))
	}
	return text.String()
}

// idle waits until the engine has nothing to do and nothing is left but documents.
func (r *running) idle() {
	r.t.Helper()
	eventually(r.t, "the engine is idle", func() bool {
		stats, err := r.service.engine.runtime.Stats()
		_, loaded := r.service.library.held()
		return err == nil && r.service.engine.gate.running() == 0 && stats.Sessions == loaded
	})
}
