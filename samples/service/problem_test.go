package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"waveinfer"
)

// with is a request that is right but for these fields.
func with(fields object) object {
	body := chatAbout(fact, question)
	for name, value := range fields {
		body[name] = value
	}
	return body
}

func TestWrongRequestsAreRefusedInOpenAIsWords(t *testing.T) {
	r := start(t, func(o *options) { o.context, o.maxTokens, o.documentBytes = 500, 100, 20000 })
	const chat, completions, documents = "/v1/chat/completions", "/v1/completions", "/v1/documents"
	long := strings.Repeat("word ", 600)
	for _, test := range []struct {
		name, path string
		body       any
		status     int
		code       any
		param      any
	}{
		{"broken JSON", chat, `{"model": "needle-f16", `, 400, "invalid_json", nil},
		{"two JSONs", chat, `{} {}`, 400, "invalid_json", nil},
		{"nothing", chat, ``, 400, "invalid_json", nil},
		{"a list", chat, `[]`, 400, "invalid_type", nil},
		{"no model", chat, object{"messages": []object{}}, 400, "missing_parameter", "model"},
		{"another model", chat, with(object{"model": "gpt-4"}), 404, "model_not_found", "model"},
		{"no messages", chat, with(object{"messages": []object{}}), 400, "invalid_value", "messages"},
		{"messages of another type", chat, with(object{"messages": "hello"}), 400, "invalid_type", "messages"},
		{"an unknown role", chat, with(object{"messages": []object{{"role": "end|>", "content": "x"}}}), 400, "unsupported_value", "messages"},
		{"a picture", chat, with(object{"messages": []object{{"role": "user", "content": []object{{"type": "image_url"}}}}}), 400, "unsupported_value", "messages"},
		{"content of another type", chat, with(object{"messages": []object{{"role": "user", "content": 5}}}), 400, "invalid_type", "messages"},
		{"a call of a tool", chat, with(object{"messages": []object{{"role": "assistant", "content": nil, "tool_calls": []object{{"id": "1"}}}}}), 400, "unsupported_value", "messages"},
		{"a name", chat, with(object{"messages": []object{{"role": "user", "content": "x", "name": "Ann"}}}), 400, "unsupported_value", "messages"},
		{"temperature as text", chat, with(object{"temperature": "hot"}), 400, "invalid_type", "temperature"},
		{"temperature too high", chat, with(object{"temperature": 3}), 400, "invalid_value", "temperature"},
		{"top_p too high", chat, with(object{"top_p": 1.5}), 400, "invalid_value", "top_p"},
		{"a fraction of a token", chat, with(object{"max_tokens": 1.5}), 400, "invalid_type", "max_tokens"},
		{"no tokens", chat, with(object{"max_tokens": 0}), 400, "invalid_value", "max_tokens"},
		{"too many tokens", chat, with(object{"max_tokens": 101}), 400, "invalid_value", "max_tokens"},
		{"seed as text", chat, with(object{"seed": "x"}), 400, "invalid_type", "seed"},
		{"stop as a number", chat, with(object{"stop": 5}), 400, "invalid_type", "stop"},
		{"an empty stop", chat, with(object{"stop": ""}), 400, "invalid_value", "stop"},
		{"a bias of no token", chat, with(object{"logit_bias": object{"x": 1}}), 400, "invalid_value", "logit_bias"},
		{"a bias beyond the vocabulary", chat, with(object{"logit_bias": object{"99999": 1}}), 400, nil, nil},
		{"two answers", chat, with(object{"n": 2}), 400, "unsupported_parameter", "n"},
		{"tools", chat, with(object{"tools": []object{{"type": "function"}}}), 400, "unsupported_parameter", "tools"},
		{"an unknown field", chat, with(object{"temperatur": 1}), 400, "unsupported_parameter", "temperatur"},
		{"an unknown document", chat, with(object{"document": "doc-0"}), 404, "document_not_found", "document"},
		{"too long a conversation", chat, chatAbout(long, question), 400, "context_length_exceeded", "messages"},
		{"too long a prompt", completions, object{"model": "needle-f16", "prompt": long}, 400, "context_length_exceeded", "prompt"},
		{"no prompt", completions, object{"model": "needle-f16", "prompt": []int{}}, 400, "invalid_value", "prompt"},
		{"a prompt of another type", completions, object{"model": "needle-f16", "prompt": object{}}, 400, "invalid_type", "prompt"},
		{"several prompts", completions, object{"model": "needle-f16", "prompt": []string{"a", "b"}}, 400, "unsupported_value", "prompt"},
		{"null as a token", completions, object{"model": "needle-f16", "prompt": []any{1, nil, 3}}, 400, "invalid_type", "prompt"},
		{"nothing but null", completions, object{"model": "needle-f16", "prompt": []any{nil}}, 400, "invalid_type", "prompt"},
		{"null in a list of one prompt", completions, object{"model": "needle-f16", "prompt": [][]any{{1, nil}}}, 400, "invalid_type", "prompt"},
		{"no token", completions, object{"model": "needle-f16", "prompt": []int{99999}}, 400, "invalid_value", "prompt"},
		{"too long a request", chat, chatAbout(strings.Repeat("x", 30000), question), 413, "request_too_large", nil},
		{"an empty document", documents, " \n", 400, "invalid_value", "text"},
		{"no text", documents, "\xff\xfe\x00", 400, "invalid_value", "text"},
		{"too long a name", documents + "?name=" + strings.Repeat("x", 256), fact, 400, "invalid_value", "name"},
		{"too long a document", documents, long, 400, "context_length_exceeded", "text"},
		{"no question", documents + "/doc-0/ask", object{}, 400, "missing_parameter", "question"},
		{"a question to no document", documents + "/doc-0/ask", object{"question": "?"}, 404, "document_not_found", "document"},
		{"nothing there", "/v1/embeddings", object{}, 404, "not_found", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, answer := r.call("POST", test.path, test.body)
			message, _ := at(answer, "error/message").(string)
			if status != test.status || at(answer, "error/code") != test.code || at(answer, "error/param") != test.param ||
				at(answer, "error/type") != "invalid_request_error" || message == "" {
				t.Errorf("status %d, %v", status, answer)
			}
		})
	}
	if status, _ := r.call("DELETE", chat, nil); status != http.StatusMethodNotAllowed {
		t.Errorf("the wrong method: status %d", status)
	}
	r.post(chat, chatAbout(fact, question)) // and it goes on
	r.idle()
}

func TestFieldsThatChangeNothingAreIgnored(t *testing.T) {
	r := start(t, nil)
	body := with(object{"user": "me", "metadata": object{"a": "b"}, "n": 1, "presence_penalty": 0, "logprobs": false, "tools": nil,
		"response_format": object{"type": "text"}, "stop": nil, "seed": nil, "max_tokens": nil})
	body["messages"] = []object{{"role": "user", "content": fact + "\n\n" + question, "tool_calls": nil, "refusal": nil, "annotations": []object{}}}
	if got := at(r.post("/v1/chat/completions", body), "choices/0/message/content"); got != fact {
		t.Errorf("the answer is %v", got)
	}
}

func TestAModelWithoutATemplateAnswersPromptsOnly(t *testing.T) {
	model, err := os.ReadFile(modelPath)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bare.gguf")
	bare := bytes.Replace(model, []byte("tokenizer.chat_template"), []byte("tokenizer.none_template"), 1)
	if err := os.WriteFile(path, bare, 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, func(o *options) { o.model, o.name = path, "bare" })
	body := with(object{"model": "bare"})
	if status, answer := r.call("POST", "/v1/chat/completions", body); status != 400 || at(answer, "error/code") != "no_chat_template" {
		t.Errorf("chat: status %d, %v", status, answer)
	}
	r.post("/v1/completions", object{"model": "bare", "prompt": "In the beginning"})
	document := r.post("/v1/documents", someText(random(t), 20))
	answer := r.post("/v1/documents/"+document["id"].(string)+"/ask", object{"question": question, "max_tokens": 5})
	if at(answer, "usage/prompt_tokens_details/cached_tokens").(float64) < document["tokens"].(float64)-1 {
		t.Errorf("the document has %v tokens; %v", document["tokens"], answer)
	}
}

func TestAnotherSitesPageIsRefused(t *testing.T) {
	r := start(t, nil)
	for site, want := range map[string]int{"cross-site": 403, "same-origin": 201} {
		request, _ := http.NewRequest("POST", r.server.URL+"/v1/documents", strings.NewReader(fact+" "+site))
		request.Header.Set("Sec-Fetch-Site", site)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d", site, response.StatusCode, want)
		}
	}
}

func TestAnotherNameOfThisMachineIsRefused(t *testing.T) {
	r := start(t, func(o *options) { o.hosts = []string{"llm.example"} })
	_, port, _ := net.SplitHostPort(r.server.Listener.Addr().String())
	for host, want := range map[string]int{"evil.example": 403, "evil.example:" + port: 403, "127.0.0.1.evil.example": 403,
		"localhost": 200, "LOCALHOST:" + port: 200, "127.0.0.1:" + port: 200, "[::1]": 200, "llm.example:443": 200} {
		request, _ := http.NewRequest("GET", r.server.URL+"/v1/documents", nil)
		request.Host = host
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d", host, response.StatusCode, want)
		}
	}
}

// Browsers name a host in every request.
func TestWhoNamesNoHostAndWhoAsksForHealthIsAnswered(t *testing.T) {
	r := start(t, nil)
	for _, request := range []string{"GET /healthz HTTP/1.0\r\n\r\n", "GET /v1/models HTTP/1.0\r\n\r\n",
		"GET /healthz HTTP/1.1\r\nHost: balancer.example\r\nConnection: close\r\n\r\n"} {
		connection, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		connection.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(connection, request)
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != 200 {
			t.Errorf("%q: status %d", request, response.StatusCode)
		}
	}
}

func TestBodiesOfAllRequestsTogetherAreBounded(t *testing.T) {
	r := start(t, nil)
	r.service.bodies.others.Store(10000)
	status, answer := r.call("POST", "/v1/chat/completions", chatAbout(strings.Repeat("x", smallBody+20000), question))
	if status != http.StatusTooManyRequests || at(answer, "error/code") != "too_many_bytes" {
		t.Errorf("status %d, %v", status, answer)
	}
	r.post("/v1/chat/completions", chatAbout(fact, question))
	r.idle()
	if free := r.service.bodies.others.Load(); free != 10000 {
		t.Errorf("%d bytes are free", free)
	}
}

// slowly sends a POST but for the last byte of its body.
func (r *running) slowly(path string, bytes int) net.Conn {
	r.t.Helper()
	connection, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { connection.Close() })
	fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", path, bytes)
	io.WriteString(connection, strings.Repeat("a", bytes-1))
	return connection
}

func TestWhoSendsSlowlyKeepsNoSmallRequestOut(t *testing.T) {
	const largest = 1 << 20
	r := start(t, func(o *options) { o.documentBytes = largest })
	fill := func(path string, free *atomic.Int64) {
		for i := range int64(bodiesOf) {
			r.slowly(path, largest)
			if i < bodiesOf/2 { // the others find no room
				left := bodiesOf/2*largest - (i+1)*(largest-1-smallBody)
				eventually(t, path+": a body has come", func() bool { return free.Load() == left })
			}
		}
		status, answer := r.call("POST", path, strings.Repeat("b", largest))
		if status != http.StatusTooManyRequests || at(answer, "error/code") != "too_many_bytes" {
			t.Errorf("%s: status %d, %v", path, status, answer)
		}
	}
	fill("/v1/documents", &r.service.bodies.documents)
	r.post("/v1/chat/completions", chatAbout(strings.Repeat("And it was so. ", 2000), question))
	r.post("/v1/documents", fact)
	fill("/v1/completions", &r.service.bodies.others)
	r.post("/v1/completions", object{"model": "needle-f16", "prompt": "In the", "max_tokens": 2})
	r.post("/v1/documents", fact+fact)
}

func TestABodyThatStopsComingIsNotWaitedForLong(t *testing.T) {
	usual := pieceTime
	t.Cleanup(func() { pieceTime = usual }) // once the service has ended
	pieceTime = 100 * time.Millisecond
	r := start(t, nil)
	connection := r.slowly("/v1/documents", 1000)
	connection.SetDeadline(time.Now().Add(20 * time.Second))
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d", response.StatusCode)
	}
	r.post("/v1/chat/completions", chatAbout(fact, question))
}

func TestARequestThatBreaksOffIsForgotten(t *testing.T) {
	r := start(t, nil)
	connection, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(connection, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"model\":")
	connection.Close()
	r.post("/v1/chat/completions", chatAbout(fact, question))
	r.idle()
}

func TestOptionsAreChecked(t *testing.T) {
	for _, wrong := range [][]string{{}, {"--model", "x", "y"}, {"--model", "x", "--parallel", "0"},
		{"--model", "x", "--kv-budget", "8X"}, {"--model", "x", "--kv-budget", ""}, {"--unknown"},
		{"--model", "x", "--queue-time", "-1s"}, {"--model", "x", "--grace", "-1s"},
		{"--model", "x", "--load", "lost"}} {
		if _, err := parseOptions(wrong, io.Discard); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
	o, err := parseOptions([]string{"--model", "/a/b.gguf", "--kv-budget", "8G"}, io.Discard)
	if err != nil || o.name != "b" || o.kvBudget != 8<<30 || o.weights != waveinfer.WeightsCopied {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err = parseOptions([]string{"--model", "x", "--load", "mapped"}, io.Discard); err != nil || o.weights != waveinfer.WeightsMapped {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestADeviceThatIsNotThereIsAnError(t *testing.T) {
	o, _ := parseOptions([]string{"--model", modelPath, "--documents", t.TempDir(), "--device", "abacus"}, io.Discard)
	if _, err := newService(context.Background(), o); err == nil || !strings.Contains(err.Error(), "abacus") {
		t.Errorf("the error is %v", err)
	}
}

// A new model may be written over the file of the one that is served.
func TestTheModelsFileMayGo(t *testing.T) {
	whole, err := os.ReadFile(modelPath)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, func(o *options) { o.model = path })
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	r.post("/v1/chat/completions", chatAbout(fact, question))
}

func TestAStopOfNoBytesIsSaidToHaveNone(t *testing.T) {
	r := start(t, nil)
	body := chatAbout(fact, question)
	body["stop"] = []string{""}
	_, answer := r.call("POST", "/v1/chat/completions", body)
	if message := at(answer, "error/message"); message != "stop has a string of 0 bytes; allowed are 1 to 1024" {
		t.Errorf("%v", message)
	}
}

func TestAModelThatIsNotThereIsAnError(t *testing.T) {
	o, _ := parseOptions([]string{"--model", "/nowhere.gguf", "--documents", t.TempDir()}, io.Discard)
	if _, err := newService(context.Background(), o); err == nil || !strings.Contains(err.Error(), "/nowhere.gguf") {
		t.Errorf("the error is %v", err)
	}
}
