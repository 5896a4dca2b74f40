package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"waveinfer"
)

func TestAStreamSaysWhatTheWholeAnswerSays(t *testing.T) {
	r := start(t, nil)
	for path, body := range map[string]func() object{
		"/v1/chat/completions": func() object { return chatAbout(fact, question) },
		"/v1/completions": func() object {
			return object{"model": "needle-f16", "prompt": "In the beginning", "max_tokens": 40, "temperature": 1, "seed": 7}
		},
	} {
		whole := r.post(path, body())
		events, done := r.stream(path, body())
		text, _ := at(whole, "choices/0/message/content").(string)
		if text == "" {
			text, _ = at(whole, "choices/0/text").(string)
		}
		if text == "" || written(events) != text {
			t.Errorf("%s: the stream says %q, the whole %q", path, written(events), text)
		}
		last := events[len(events)-1]
		if !done || at(last, "choices/0/finish_reason") != at(whole, "choices/0/finish_reason") {
			t.Errorf("%s: the stream ends with %v, done %v; the whole is %v", path, last, done, whole)
		}
		for _, event := range events {
			if event["id"] != events[0]["id"] || event["usage"] != nil {
				t.Errorf("%s: an event is %v", path, event)
			}
		}
	}
}

func TestAChatAnswersAndItsShapeIsOpenAIs(t *testing.T) {
	r := start(t, nil)
	answer := r.post("/v1/chat/completions", chatAbout(fact, question))
	for path, want := range map[string]any{
		"object": "chat.completion", "model": "needle-f16", "choices/0/index": 0.0, "choices/0/finish_reason": "stop",
		"choices/0/message/role": "assistant", "choices/0/message/content": fact,
	} {
		if got := at(answer, path); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	events, _ := r.stream("/v1/chat/completions", chatAbout(fact, question))
	if at(events[0], "choices/0/delta/role") != "assistant" || at(events[0], "object") != "chat.completion.chunk" {
		t.Errorf("the first event is %v", events[0])
	}
}

// The stream has said by then that it is alive.
func TestAStreamBeginsWithTheRoleHoweverLongItReads(t *testing.T) {
	usual := aliveEvery
	t.Cleanup(func() { aliveEvery = usual }) // once the service has ended
	aliveEvery = time.Millisecond
	r := start(t, nil)
	events, _ := r.stream("/v1/chat/completions", chatAbout(someText(random(t), 200), question))
	if at(events[0], "choices/0/delta/role") != "assistant" {
		t.Errorf("the first event is %v", events[0])
	}
}

func TestContentMayBeAListOfTexts(t *testing.T) {
	r := start(t, nil)
	body := chatAbout(fact, question)
	body["messages"] = []object{{"role": "user", "content": []object{{"type": "text", "text": fact + "\n"}, {"type": "text", "text": question}}}}
	if got := at(r.post("/v1/chat/completions", body), "choices/0/message/content"); got != fact {
		t.Errorf("the answer is %v", got)
	}
}

func TestTheSameSeedWritesTheSameAnswer(t *testing.T) {
	r := start(t, nil)
	answer := func(seed any) any {
		return at(r.post("/v1/completions", object{"model": "needle-f16", "prompt": "In the beginning", "max_tokens": 30,
			"temperature": 1.5, "seed": seed}), "choices/0/text")
	}
	if answer(7) != answer(7) {
		t.Error("two answers with one seed differ")
	}
	if answer(7) == answer(-8) {
		t.Error("answers with two seeds are the same")
	}
	if answer(nil) == answer(nil) {
		t.Error("answers without a seed are the same")
	}
}

func TestAStopStringEndsAnAnswerAndIsNotTold(t *testing.T) {
	r := start(t, nil)
	for _, stop := range []any{" copper", []string{"nothing of the kind", "r is copp"}} {
		body := chatAbout(fact, question)
		body["stop"] = stop
		want, _, _ := strings.Cut(fact, " copper")
		if _, several := stop.([]string); several {
			want, _, _ = strings.Cut(fact, "r is copp")
		}
		whole := r.post("/v1/chat/completions", body)
		if got := at(whole, "choices/0/message/content"); got != want || at(whole, "choices/0/finish_reason") != "stop" {
			t.Errorf("stop %v: the answer is %q, want %q", stop, got, want)
		}
		if events, _ := r.stream("/v1/chat/completions", body); written(events) != want {
			t.Errorf("stop %v: the stream is %q, want %q", stop, written(events), want)
		}
	}
}

func TestMaxTokensCutsAnAnswer(t *testing.T) {
	r := start(t, nil)
	for _, name := range []string{"max_tokens", "max_completion_tokens"} {
		body := chatAbout(fact, question)
		body[name] = 3
		answer := r.post("/v1/chat/completions", body)
		if at(answer, "choices/0/finish_reason") != "length" || at(answer, "usage/completion_tokens") != 3.0 {
			t.Errorf("%s: the answer is %v", name, answer)
		}
	}
}

func TestUsageCountsTokens(t *testing.T) {
	r := start(t, nil)
	model := r.service.engine.model
	tokens, err := model.ChatTokens([]waveinfer.ChatMessage{{Role: "user", Content: fact + "\n\n" + question}},
		&waveinfer.ChatParams{AddGenerationPrompt: true})
	if err != nil {
		t.Fatal(err)
	}
	session, err := model.NewSession(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := session.Prefill(context.Background(), tokens, nil); err != nil {
		t.Fatal(err)
	}
	written := 0
	for _, err := range session.Events(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		written++
	}

	body := chatAbout(fact, question)
	body["stream_options"] = object{"include_usage": true}
	events, _ := r.stream("/v1/chat/completions", body)
	whole := r.post("/v1/chat/completions", chatAbout(fact, question))
	last := events[len(events)-1]
	if choices, _ := last["choices"].([]any); choices == nil || len(choices) != 0 {
		t.Errorf("the event with the usage has choices: %v", last)
	}
	for _, usage := range []any{last["usage"], whole["usage"]} {
		if at(usage, "prompt_tokens") != float64(len(tokens)) || at(usage, "completion_tokens") != float64(written) ||
			at(usage, "total_tokens") != float64(len(tokens)+written) {
			t.Errorf("the usage is %v; the library counts %d and %d", usage, len(tokens), written)
		}
	}
}

func TestTokenIDsAreAPromptToo(t *testing.T) {
	r := start(t, nil)
	ids, err := r.service.engine.model.Tokenize("In the beginning", waveinfer.TokenizeAddBOS)
	if err != nil {
		t.Fatal(err)
	}
	body := object{"model": "needle-f16", "temperature": 0, "max_tokens": 8}
	var texts []any
	for _, prompt := range []any{"In the beginning", []string{"In the beginning"}, ids, [][]waveinfer.Token{ids}} {
		body["prompt"] = prompt
		texts = append(texts, at(r.post("/v1/completions", body), "choices/0/text"))
	}
	for _, text := range texts {
		if text != texts[0] || text == "" {
			t.Errorf("the answers are %q", texts)
		}
	}
}

func TestStatisticsSayWhatWasRead(t *testing.T) {
	r := start(t, nil)
	body := chatAbout(fact, question)
	body["statistics"] = true
	events, _ := r.stream("/v1/chat/completions", body)
	read := 0.0
	for _, event := range events {
		now, is := at(event, "statistics/kv_bytes_read").(float64)
		if !is || now < read {
			t.Errorf("after %g bytes: %v", read, event)
		}
		read = now
	}
	if coverage := at(events[len(events)-1], "statistics/coverage"); read == 0 || coverage != 1.0 {
		t.Errorf("%g bytes read, coverage %v", read, coverage)
	}
}

func TestTheModelIsListed(t *testing.T) {
	r := start(t, func(o *options) { o.name = "mine" })
	_, list := r.call("GET", "/v1/models", nil)
	_, one := r.call("GET", "/v1/models/mine", nil)
	if at(list, "data/0/id") != "mine" || one["id"] != "mine" || one["object"] != "model" {
		t.Errorf("the list is %v, the model %v", list, one)
	}
	if status, answer := r.call("GET", "/v1/models/other", nil); status != http.StatusNotFound || at(answer, "error/code") != "model_not_found" {
		t.Errorf("another model: %d, %v", status, answer)
	}
}
