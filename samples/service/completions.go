package main

import (
	"encoding/json"
	"net/http"
	"strconv"

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
	q.Prompt.most = s.engine.context
	if err := readJSON(w, r, s.requestBytes, &q); err != nil {
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

// prompt is a text or token ids, of which there may be most; of lists of prompts only those of one.
type prompt struct {
	text   string
	tokens []waveinfer.Token // nil: text is meant
	most   int
}

func (p *prompt) UnmarshalJSON(data []byte) error {
	p.text, p.tokens = "", nil
	if first, rest := cut(inside(data, '[')); len(first) > 0 && (first[0] == '"' || first[0] == '[') {
		if len(rest) > 0 {
			return badRequest("prompt", "unsupported_value", "prompt: one at a time, not a list of them")
		}
		data = first
	}
	if json.Unmarshal(data, &p.text) == nil {
		return nil
	}
	if !isList(data) {
		return badRequest("prompt", "invalid_type", "prompt: expected a string or a list of token ids")
	}
	p.tokens = []waveinfer.Token{}
	for element := range elementsOf(data) {
		if len(p.tokens) == p.most {
			return tooLong("prompt", p.most)
		}
		id, err := strconv.ParseInt(string(element), 10, 32) // where null would be token 0 to others, without a word
		if err != nil {
			return badRequest("prompt", "invalid_type", "prompt[%d] is no token id", len(p.tokens))
		}
		p.tokens = append(p.tokens, waveinfer.Token(id))
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
