package main

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// someJSON is a value of any kind, with spaces where there may be some.
func someJSON(r *rand.Rand, depth int) string {
	space := strings.Repeat(" ", r.IntN(2)) + strings.Repeat("\n\t", r.IntN(2))
	kinds := 7
	if depth == 0 {
		kinds = 5
	}
	value := ""
	switch r.IntN(kinds) {
	case 0:
		value = []string{"null", "true", "false"}[r.IntN(3)]
	case 1:
		value = []string{"0", "-1.5e+3", "17"}[r.IntN(3)]
	default:
		value = []string{`""`, `"a"`, `"\\"`, `"\""`, `"[{]},:\\\""`, `"\u005c"`}[r.IntN(6)]
	case 5, 6:
		var parts []string
		isList := r.IntN(2) == 0
		for range r.IntN(4) {
			part := someJSON(r, depth-1)
			if !isList {
				part = space + []string{`"a"`, `"b\"]"`, `"{,\\"`, `""`}[len(parts)] + space + ":" + part
			}
			parts = append(parts, part)
		}
		value = "{" + space + strings.Join(parts, ",") + "}"
		if isList {
			value = "[" + strings.Join(parts, ",") + space + "]"
		}
	}
	return space + value + space
}

// gone is what a value is when it is gone through.
func gone(t *testing.T, data []byte) any {
	t.Helper()
	switch first := strings.TrimSpace(string(data))[0]; first {
	case '[':
		list := []any{}
		for element := range elementsOf(data) {
			list = append(list, gone(t, element))
		}
		return list
	case '{':
		fields := map[string]any{}
		for name, value := range fieldsOf(data) {
			fields[name] = gone(t, value)
		}
		return fields
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return value
}

func TestListsAndObjectsAreGoneThroughAsTheyAreDecoded(t *testing.T) {
	r := random(t)
	for range 5000 {
		data := []byte(someJSON(r, 4))
		var want any
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if got := gone(t, data); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s is %v, should be %v", data, got, want)
		}
	}
}

func TestLittleIsMadeOfALargeBody(t *testing.T) {
	many := func(of string) string { return strings.Repeat(of+",", 1<<17) + of }
	for name, body := range map[string]string{
		"token ids":       `{"prompt": [` + many("1") + `]}`,
		"a list of those": `{"prompt": [[` + many("1") + `]]}`,
		"prompts":         `{"prompt": [` + many(`""`) + `]}`,
		"messages":        `{"messages": [` + many("{}") + `]}`,
		"stops":           `{"stop": [` + many(`""`) + `]}`,
		"tools":           `{"tools": [` + many("1") + `]}`,
	} {
		var q struct {
			writing
			Prompt   prompt       `json:"prompt"`
			Messages conversation `json:"messages"`
		}
		q.Prompt.most, q.Messages.most = 1000, 1000
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := decode([]byte(body), &q)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: it is taken", name)
		}
		made := after.TotalAlloc - before.TotalAlloc - uint64(len(body)) // which was copied for the call
		if most := uint64(1 << 20); made > most {
			t.Errorf("%s: of %d bytes %d were made", name, len(body), made)
		}
	}
}

func TestARequestIsNoLongerThanTheContext(t *testing.T) {
	r := start(t, func(o *options) { o.context = 500 })
	status, answer := r.call("POST", "/v1/chat/completions", chatAbout(strings.Repeat("x", 1<<20+1), question))
	if status != http.StatusRequestEntityTooLarge || at(answer, "error/code") != "request_too_large" {
		t.Errorf("status %d, %v", status, answer)
	}
	messages := slices.Repeat([]object{{"role": "user", "content": ""}}, 501)
	for path, body := range map[string]object{
		"/v1/completions":      {"model": "needle-f16", "prompt": make([]int, 501)},
		"/v1/chat/completions": {"model": "needle-f16", "messages": messages},
	} {
		if status, answer := r.call("POST", path, body); status != 400 || at(answer, "error/code") != "context_length_exceeded" {
			t.Errorf("%s: status %d, %v", path, status, answer)
		}
	}
	if status, _ := r.call("POST", "/v1/documents", strings.Repeat("x", 1<<20+1)); status == http.StatusRequestEntityTooLarge {
		t.Error("a document is bounded as a request is")
	}
}
