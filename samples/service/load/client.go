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
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	fact     = "The password of Boaz the potter is copper meadow."
	question = "What is the password of Boaz the potter?"
)

// load is what all clients share.
type load struct {
	at, model string
	documents []string // ids

	mu     sync.Mutex
	random *rand.Rand
	counts map[string]int // of requests, by what was asked for and how it ended
	took   []time.Duration
	errors []error
}

func (l *load) random64() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.random.Uint64()
}

// client asks one thing after the other.
func (l *load) client(ctx context.Context, r *rand.Rand) {
	for ctx.Err() == nil {
		begin := time.Now()
		what, ended, err := l.one(ctx, r)
		if ctx.Err() != nil && err != nil {
			return // in the middle, as the time was over
		}
		l.mu.Lock()
		l.counts[what+" "+ended]++
		if err != nil {
			l.errors = append(l.errors, fmt.Errorf("%s: %w", what, err))
		}
		if ended == "answered" {
			l.took = append(l.took, time.Since(begin))
		}
		l.mu.Unlock()
		if ended == "429" {
			time.Sleep(time.Duration(200+r.IntN(800)) * time.Millisecond)
		}
	}
}

// one asks one thing, and says what it was and how it ended: answered, left, 429 or failed.
func (l *load) one(ctx context.Context, r *rand.Rand) (what, ended string, err error) {
	streams := r.IntN(2) == 0
	switch kind := r.IntN(20); {
	case kind < 6:
		ended, err = l.ask(ctx, "/v1/chat/completions", fields{"temperature": 0,
			"messages": []fields{{"role": "user", "content": words(r, 5+r.IntN(200)) + fact + "\n\n" + question}}}, streams, fact)
		return "chat", ended, err
	case kind < 10:
		document := l.documents[r.IntN(len(l.documents))]
		ended, err = l.ask(ctx, "/v1/documents/"+document+"/ask", fields{"question": question}, streams, fact)
		return "document", ended, err
	case kind < 14:
		ended, err = l.ask(ctx, "/v1/completions", fields{"prompt": words(r, 1+r.IntN(100)), "max_tokens": 1 + r.IntN(64)}, streams, "")
		return "completion", ended, err
	case kind < 18:
		ended, err = l.leave(ctx, r)
		return "client that leaves", ended, err
	}
	ended, err = l.readAndDelete(ctx, r)
	return "new document", ended, err
}

type fields map[string]any

// post sends JSON. ended is "" where there is an answer to be read.
func (l *load) post(ctx context.Context, path string, body fields) (response *http.Response, ended string, err error) {
	body["model"] = l.model
	data, err := json.Marshal(body)
	if err != nil {
		return nil, "failed", err
	}
	return l.send(ctx, "POST", path, data)
}

func (l *load) send(ctx context.Context, method, path string, body []byte) (response *http.Response, ended string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, l.at+path, bytes.NewReader(body))
	if err != nil {
		return nil, "failed", err
	}
	response, err = http.DefaultClient.Do(request)
	if err != nil {
		return nil, "failed", err
	}
	if response.StatusCode < 300 {
		return response, "", nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if response.StatusCode == http.StatusTooManyRequests {
		return nil, "429", nil
	}
	return nil, "failed", fmt.Errorf("status %d: %s", response.StatusCode, text)
}

// ask asks and compares the answer, if that is known.
func (l *load) ask(ctx context.Context, path string, body fields, streams bool, want string) (ended string, err error) {
	body["stream"] = streams
	response, ended, err := l.post(ctx, path, body)
	if ended != "" {
		return ended, err
	}
	defer response.Body.Close()
	got, err := textOf(response.Body, streams)
	if err == nil && want != "" && got != want {
		err = fmt.Errorf("the answer is %q", got)
	}
	if err != nil {
		return "failed", err
	}
	return "answered", nil
}

// reply is an answer or a piece of one.
type reply struct {
	Choices []struct {
		Text           string
		Message, Delta struct{ Content string }
	}
	Error *struct{ Message string }
}

// textOf reads an answer, a stream to its [DONE].
func textOf(body io.Reader, streams bool) (string, error) {
	text, done := "", !streams
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data := bytes.TrimPrefix(lines.Bytes(), []byte("data: "))
		if string(data) == "[DONE]" {
			done = true
		}
		if !bytes.HasPrefix(data, []byte("{")) {
			continue
		}
		var piece reply
		if err := json.Unmarshal(data, &piece); err != nil {
			return "", err
		}
		if piece.Error != nil {
			return "", fmt.Errorf("the stream says: %s", piece.Error.Message)
		}
		for _, choice := range piece.Choices {
			text += choice.Text + choice.Message.Content + choice.Delta.Content
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	if !done {
		return "", fmt.Errorf("the stream broke off after %q", text)
	}
	return text, nil
}

// leave asks for a long answer and goes away while it is being written.
func (l *load) leave(ctx context.Context, r *rand.Rand) (ended string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+r.IntN(300))*time.Millisecond)
	defer cancel()
	response, ended, err := l.post(ctx, "/v1/completions", fields{"prompt": words(r, 300), "max_tokens": 1000, "stream": r.IntN(2) == 0,
		"logit_bias": fields{"1": -100}})
	if ctx.Err() != nil {
		return "left", nil
	}
	if ended != "" {
		return ended, err
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body)
	return "left", nil
}

// readAndDelete has a new document read, asks it, and deletes it. Who stopped listening in the reading would not know
// what to delete.
func (l *load) readAndDelete(ctx context.Context, r *rand.Rand) (ended string, err error) {
	id, ended, err := l.read(context.WithoutCancel(ctx), words(r, 200)+fact+words(r, 200))
	if ended != "" {
		return ended, err
	}
	ended, err = l.ask(ctx, "/v1/documents/"+id+"/ask", fields{"question": question}, false, fact)
	for { // nothing is left, also when the time is over
		response, refused, failed := l.send(context.Background(), "DELETE", "/v1/documents/"+id, nil)
		if response != nil {
			response.Body.Close()
		}
		if failed != nil {
			return "failed", failed
		}
		if refused == "" {
			return ended, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// read has a document read. ended is "" where it was.
func (l *load) read(ctx context.Context, text string) (id, ended string, err error) {
	response, ended, err := l.send(ctx, "POST", "/v1/documents?name="+url.QueryEscape("load"), []byte(text))
	if ended != "" {
		return "", ended, err
	}
	defer response.Body.Close()
	var document struct{ ID string }
	if err := json.NewDecoder(response.Body).Decode(&document); err != nil {
		return "", "failed", err
	}
	return document.ID, "", nil
}

// readDocuments has the documents read that all clients ask.
func (l *load) readDocuments(count int) error {
	for range count {
		id, ended, err := l.read(context.Background(), words(l.random, 1500)+fact+words(l.random, 1500))
		if ended != "" {
			return fmt.Errorf("the first documents: %s %w", ended, err)
		}
		l.documents = append(l.documents, id)
	}
	return nil
}

// words is a text of so many words.
func words(r *rand.Rand, count int) string {
	some := strings.Fields("and the light of water upon earth was in heaven by day when night fell on river stone tree")
	var text strings.Builder
	for range count {
		text.WriteString(some[r.IntN(len(some))] + " ")
	}
	return text.String()
}

// metrics is what the service says of itself.
func (l *load) metrics() (map[string]float64, error) {
	response, _, err := l.send(context.Background(), "GET", "/metrics", nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if number, err := strconv.ParseFloat(value, 64); err == nil {
			values[name] = number
		}
	}
	return values, lines.Err()
}

func (l *load) report(clients int, during time.Duration, memory []float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := make([]string, 0, len(l.counts))
	for name := range l.counts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Printf("  %-28s %7d\n", name, l.counts[name])
	}
	slices.Sort(l.took)
	if count := len(l.took); count > 0 {
		fmt.Printf("  %d clients for %v: %d requests answered, %.1f/s, median %v, 99 %% in %v\n", clients, during, count,
			float64(count)/during.Seconds(), l.took[count/2].Round(time.Millisecond), l.took[count*99/100].Round(time.Millisecond))
	}
	fmt.Print("  resident memory before and after each tenth of the time, MB:")
	for _, bytes := range memory {
		fmt.Printf(" %.1f", bytes/1e6)
	}
	fmt.Println()
}

// failure is what went wrong, the first few of it.
func (l *load) failure() error {
	if len(l.errors) == 0 {
		return nil
	}
	return fmt.Errorf("%d requests failed: %v", len(l.errors), l.errors[:min(len(l.errors), 5)])
}
