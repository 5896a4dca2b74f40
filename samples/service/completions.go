package main

import (
	"bytes"
	"encoding/json"
	"net/http"

	"waveinfer"
)

// usualCompletion is OpenAI's, in tokens.
const usualCompletion = 16

// completions is POST /v1/completions.
func (s *service) completions(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		writing
		Prompt prompt `json:"prompt"`
	}
	if err := readJSON(w, r, s.documentBytes, &q); err != nil {
		return err
	}
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	sampling, err := q.sampling(1)
	if err != nil {
		return err
	}
	return s.answer(r.Context(), newEventStream(w), &completionForm, &q.writing, sampling, func() (*asked, error) {
		tokens, err := q.Prompt.of(s.engine)
		return &asked{prompt: tokens, param: "prompt", most: usualCompletion}, err
	})
}

// prompt is a text or token ids; of lists of prompts only those of one.
type prompt struct {
	text   string
	tokens []waveinfer.Token // nil: text is meant
}

func (p *prompt) UnmarshalJSON(data []byte) error {
	if list := bytes.TrimSpace(data); list[0] == '[' {
		var prompts []json.RawMessage
		if err := json.Unmarshal(data, &prompts); err != nil {
			return err
		}
		switch {
		case len(prompts) == 1 && (prompts[0][0] == '"' || prompts[0][0] == '['):
			data = prompts[0]
		case len(prompts) > 1 && (prompts[0][0] == '"' || prompts[0][0] == '['):
			return badRequest("prompt", "unsupported_value", "prompt: one at a time; the list has %d", len(prompts))
		}
	}
	if json.Unmarshal(data, &p.text) == nil {
		return nil
	}
	var ids []*waveinfer.Token // a null would be token 0 without a word
	if json.Unmarshal(data, &ids) != nil {
		return badRequest("prompt", "invalid_type", "prompt: expected a string or a list of token ids")
	}
	p.tokens = make([]waveinfer.Token, len(ids))
	for i, id := range ids {
		if id == nil {
			return badRequest("prompt", "invalid_type", "prompt[%d] is null, must be a token id", i)
		}
		p.tokens[i] = *id
	}
	return nil
}

func (p *prompt) of(e *engine) ([]waveinfer.Token, error) {
	tokens := p.tokens
	if tokens == nil {
		var err error
		if tokens, err = e.model.Tokenize(p.text, waveinfer.TokenizeAddBOS|waveinfer.TokenizeParseSpecial); err != nil {
			return nil, err
		}
	}
	if len(tokens) == 0 {
		return nil, badRequest("prompt", "invalid_value", "prompt is empty")
	}
	for _, token := range tokens {
		if token < 0 || int(token) >= e.info.Vocab {
			return nil, badRequest("prompt", "invalid_value", "prompt: %d is no token id; they are 0 to %d", token, e.info.Vocab-1)
		}
	}
	return tokens, nil
}
