package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"waveinfer"
)

// writing is what all requests have in common that want something written; nil: the default.
type writing struct {
	Model               string    `json:"model"`
	MaxTokens           *int      `json:"max_tokens"`
	MaxCompletionTokens *int      `json:"max_completion_tokens"`
	Temperature         *float32  `json:"temperature"`
	TopP                *float32  `json:"top_p"`
	TopK                int       `json:"top_k"`
	MinP                float32   `json:"min_p"`
	RepetitionPenalty   float32   `json:"repetition_penalty"`
	Seed                *int64    `json:"seed"`
	Stop                oneOrMore `json:"stop"`
	LogitBias           biases    `json:"logit_bias"`
	Stream              bool      `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Statistics bool `json:"statistics"` // with each piece of a stream, and with the whole
}

// oneOrMore is a string or a list of them.
type oneOrMore []string

// mostStops are the strings of a list that are looked at; more are no request that would be answered.
const mostStops = 64

func (s *oneOrMore) UnmarshalJSON(data []byte) error {
	var one *string
	if json.Unmarshal(data, &one) == nil {
		if *s = nil; one != nil {
			*s = oneOrMore{*one}
		}
		return nil
	}
	wrong := badRequest("stop", "invalid_type", "stop: expected a string or a list of strings")
	if !isList(data) {
		return wrong
	}
	*s = nil
	for element := range elementsOf(data) {
		if len(*s) == mostStops {
			return badRequest("stop", "invalid_value", "stop has more than %d strings", mostStops)
		}
		var stop string
		if json.Unmarshal(element, &stop) != nil {
			return wrong
		}
		*s = append(*s, stop)
	}
	return nil
}

// biases are of an object whose names are token ids.
type biases []waveinfer.LogitBias

func (b *biases) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &struct{}{}); err != nil {
		return badRequest("logit_bias", "invalid_type", "logit_bias: expected an object")
	}
	*b = nil
	for name, value := range fieldsOf(data) {
		token, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			return badRequest("logit_bias", "invalid_value", "logit_bias: %q is no token id", name)
		}
		var bias float32
		if json.Unmarshal(value, &bias) != nil {
			return badRequest("logit_bias", "invalid_type", "logit_bias: the bias of %s is no number", name)
		}
		if bias <= -100 { // by which OpenAI's API means never
			bias = float32(math.Inf(-1))
		}
		*b = append(*b, waveinfer.LogitBias{Token: waveinfer.Token(token), Bias: bias})
	}
	return nil
}

// sampling checks what says how tokens are picked. temperature is where the request has none.
func (q *writing) sampling(temperature float32) (*waveinfer.SamplingParams, error) {
	s := &waveinfer.SamplingParams{
		Temperature: temperature, TopP: 1, TopK: q.TopK, MinP: q.MinP, RepetitionPenalty: q.RepetitionPenalty,
		Seed: rand.Uint64(), Stops: q.Stop, LogitBias: q.LogitBias,
	}
	if q.Temperature != nil {
		s.Temperature = *q.Temperature
	}
	if q.TopP != nil {
		s.TopP = *q.TopP
	}
	if q.Seed != nil {
		s.Seed = uint64(*q.Seed)
	}
	switch {
	case s.Temperature < 0 || s.Temperature > 2:
		return nil, outOfRange("temperature", s.Temperature, "0 to 2")
	case s.TopP < 0 || s.TopP > 1:
		return nil, outOfRange("top_p", s.TopP, "0 to 1")
	case s.TopK < 0:
		return nil, outOfRange("top_k", s.TopK, "0 (all) and more")
	case s.MinP < 0 || s.MinP >= 1:
		return nil, outOfRange("min_p", s.MinP, "0 to less than 1")
	case s.RepetitionPenalty < 0 || s.RepetitionPenalty > 100:
		return nil, outOfRange("repetition_penalty", s.RepetitionPenalty, "0 (none) to 100")
	}
	if s.TopP == 0 { // nothing but the best, which is one token
		s.TopP, s.TopK = 1, 1
	}
	for _, stop := range s.Stops {
		if len(stop) < 1 || len(stop) > 1024 {
			return nil, badRequest("stop", "invalid_value", "stop has a string of %d bytes; allowed are 1 to 1024", len(stop))
		}
	}
	return s, nil
}

// most is how many tokens the answer to a prompt may have. usual is where the request does not say.
func (q *writing) most(e *engine, param string, prompt, usual int) (int, error) {
	asked, name := q.MaxTokens, "max_tokens"
	if q.MaxCompletionTokens != nil {
		asked, name = q.MaxCompletionTokens, "max_completion_tokens"
	}
	most := max(min(usual, e.maxTokens, e.context-prompt), 1)
	if asked != nil {
		most = *asked
	}
	if most < 1 || most > e.maxTokens {
		return 0, outOfRange(name, most, "1 to "+strconv.Itoa(e.maxTokens))
	}
	return most, e.mayTake(param, prompt, most)
}

func outOfRange(param string, value any, allowed string) *problem {
	return badRequest(param, "invalid_value", "%s is %v; allowed are %s", param, value, allowed)
}

// Fields of OpenAI's API that change nothing in an answer are ignored, whatever they say; those that would
// change it may say what is done anyway.
var (
	ignored = []string{"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
		"prompt_cache_retention", "parallel_tool_calls", "verbosity"}
	neutral = map[string][]any{
		"n": {1.0}, "best_of": {1.0}, "echo": {false}, "suffix": {""}, "logprobs": {false}, "top_logprobs": {0.0},
		"presence_penalty": {0.0}, "frequency_penalty": {0.0}, "tools": {[]any{}}, "functions": {[]any{}},
		"tool_choice": {"none", "auto"}, "function_call": {"none", "auto"}, "modalities": {[]any{"text"}},
		"response_format": {map[string]any{"type": "text"}},
	}
)

// readJSON reads a request's body into a struct. What is not understood is an error that names it.
func readJSON(w http.ResponseWriter, r *http.Request, most int64, to any) error {
	body, err := readBody(w, r, most)
	if err != nil {
		return err
	}
	return decode(body, to)
}

func decode(body []byte, to any) error {
	if err := json.Unmarshal(body, &struct{}{}); err != nil { // nothing is made of it: it is JSON and an object, or not
		return jsonProblem(err)
	}
	known := map[string]bool{}
	addFields(reflect.TypeOf(to).Elem(), known)
	for _, name := range ignored {
		known[name] = true
	}
	for name, raw := range fieldsOf(body) {
		if !known[strings.ToLower(name)] && !isNeutral(name, raw) {
			return badRequest(name, "unsupported_parameter", "%s is not supported here", name)
		}
	}
	if err := json.Unmarshal(body, to); err != nil {
		return jsonProblem(err)
	}
	return nil
}

// addFields adds the names of a struct's fields, those of embedded ones too.
func addFields(of reflect.Type, known map[string]bool) {
	for i := range of.NumField() {
		field := of.Field(i)
		if field.Anonymous {
			addFields(field.Type, known)
		} else {
			known[field.Tag.Get("json")] = true
		}
	}
}

// What is longer than this is not neutral.
const mostNeutral = 1000

func isNeutral(name string, raw []byte) bool {
	allowed, found := neutral[name]
	var value any
	if !found || len(raw) > mostNeutral || json.Unmarshal(raw, &value) != nil {
		return false
	}
	for _, same := range allowed {
		if reflect.DeepEqual(value, same) {
			return true
		}
	}
	return value == nil
}

func jsonProblem(err error) error {
	var wrong *json.UnmarshalTypeError
	var known *problem
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &wrong):
		field := strings.TrimPrefix(wrong.Field, "writing.") // where the field is embedded
		if field == "" {
			return badRequest("", "invalid_type", "the body: expected %s, got %s", jsonKind(wrong.Type), wrong.Value)
		}
		return badRequest(field, "invalid_type", "%s: expected %s, got %s", field, jsonKind(wrong.Type), wrong.Value)
	}
	return badRequest("", "invalid_json", "the body is no JSON: %s", err)
}

// jsonKind says which JSON becomes a Go type.
func jsonKind(of reflect.Type) string {
	switch of.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return "an integer"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// readBody reads all of a request: only then does the server notice that the client goes.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	control := http.NewResponseController(w)
	defer control.SetReadDeadline(time.Time{})
	from := &patient{Reader: http.MaxBytesReader(w, r.Body, most), control: control, end: time.Now().Add(readTime)}
	body, err := io.ReadAll(from)
	var large *http.MaxBytesError
	var known *problem
	if err != nil && !errors.As(err, &large) && !errors.As(err, &known) {
		return nil, badRequest("", "incomplete_request", "the request's body did not arrive: %s", err)
	}
	return bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")), err
}
