package main

import (
	"encoding/json"
	"strings"
	"time"

	"waveinfer"
)

// message is one of a conversation, as OpenAI's API has them.
type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// conversation is a list of messages, of which there may be most: each takes a token at least.
type conversation struct {
	messages []message
	most     int
}

func (c *conversation) UnmarshalJSON(data []byte) error {
	if c.messages = nil; string(data) == "null" {
		return nil
	}
	if !isList(data) {
		return badRequest("messages", "invalid_type", "messages: expected a list")
	}
	for element := range elementsOf(data) {
		if len(c.messages) == c.most {
			return tooLong("messages", c.most)
		}
		var m message
		if err := json.Unmarshal(element, &m); err != nil {
			return err
		}
		c.messages = append(c.messages, m)
	}
	return nil
}

// tooLong refuses what has more parts than there may be tokens.
func tooLong(param string, most int) error {
	return badRequest(param, "context_length_exceeded", "this model's maximum context length is %d tokens; %s has more", most, param)
}

// UnmarshalJSON refuses what else a message says: calls of tools, say, which the model would not be told of. Clients
// send answers back as they got them, with fields that are empty.
func (m *message) UnmarshalJSON(data []byte) error {
	type plain message
	if err := json.Unmarshal(data, (*plain)(m)); err != nil {
		return err
	}
	for name, value := range fieldsOf(data) {
		switch name = strings.ToLower(name); {
		case name == "role" || name == "content" || isEmpty(value):
		default:
			return badRequest("messages", "unsupported_value", "messages: %s is not supported here", name)
		}
	}
	return nil
}

func isEmpty(value []byte) bool {
	switch string(value) {
	case "null", `""`:
		return true
	}
	return len(value) > 1 && (value[0] == '[' || value[0] == '{') && len(inside(value, value[0])) == 0
}

// content is a text, or a list of parts that are texts.
type content string

func (c *content) UnmarshalJSON(data []byte) error {
	var text *string
	if json.Unmarshal(data, &text) == nil {
		if text != nil {
			*c = content(*text)
		}
		return nil
	}
	wrong := badRequest("messages", "invalid_type", "messages: content must be a string or a list of parts")
	if !isList(data) {
		return wrong
	}
	var all strings.Builder
	between := ""
	for element := range elementsOf(data) {
		var part struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}
		if json.Unmarshal(element, &part) != nil {
			return wrong
		}
		if part.Type != "text" {
			return badRequest("messages", "unsupported_value", "messages: parts of type %q are not supported, only text", part.Type)
		}
		all.WriteString(between)
		all.WriteString(part.Text)
		between = "\n"
	}
	*c = content(all.String())
	return nil
}

// checkMessages refuses what the model's template cannot know. A role becomes part of the template's own text,
// so strangers have the choice of these only.
func checkMessages(messages []message) error {
	if len(messages) == 0 {
		return badRequest("messages", "invalid_value", "messages is empty")
	}
	for i := range messages {
		switch messages[i].Role {
		case "developer":
			messages[i].Role = "system"
		case "system", "user", "assistant":
		default:
			return badRequest("messages", "unsupported_value",
				"messages[%d].role is %q; supported are system, developer, user and assistant", i, messages[i].Role)
		}
	}
	return nil
}

// chatTokens renders a conversation up to where the answer begins.
func (e *engine) chatTokens(messages []message, now time.Time) ([]waveinfer.Token, error) {
	if e.info.ChatFamily == "" {
		return nil, badRequest("model", "no_chat_template",
			"the model %s has no chat template; /v1/completions takes a ready prompt", e.id)
	}
	turns := make([]waveinfer.ChatMessage, len(messages))
	for i, m := range messages {
		turns[i] = waveinfer.ChatMessage{Role: m.Role, Content: string(m.Content)}
	}
	return e.model.ChatTokens(turns, &waveinfer.ChatParams{AddGenerationPrompt: true, Now: now})
}

// about puts a document into a conversation: before the first user's message, in front of everything, as it
// was read with nothing before it. What the system has to say comes right behind it.
func about(text string, messages []message) ([]message, error) {
	var system []string
	for i, m := range messages {
		switch m.Role {
		case "system":
			system = append(system, string(m.Content))
		case "user":
			pieces := append(append([]string{text}, system...), string(m.Content))
			m.Content = content(strings.Join(pieces, "\n\n"))
			return append([]message{m}, messages[i+1:]...), nil
		default:
			return nil, badRequest("messages", "invalid_value", "messages: a conversation about a document begins with a user's message")
		}
	}
	return nil, badRequest("messages", "invalid_value", "messages: a conversation about a document needs a user's message")
}

// opening is what all conversations about a document begin with: the tokens that are worth reading once.
func (e *engine) opening(text string, now time.Time) ([]waveinfer.Token, error) {
	if e.info.ChatFamily == "" {
		return e.model.Tokenize(text, waveinfer.TokenizeAddBOS)
	}
	var shared []waveinfer.Token
	for _, question := range []string{"", "What", "1"} { // where questions differ, tokens may end differently
		tokens, err := e.chatTokens([]message{{Role: "user", Content: content(text + "\n\n" + question)}}, now)
		if err != nil {
			return nil, err
		}
		if shared == nil {
			shared = tokens
		}
		shared = shared[:commonPrefix(shared, tokens)]
	}
	if len(shared) == 0 {
		return nil, badRequest("text", "invalid_value", "the model's chat template has no room for a document")
	}
	return shared, nil
}

// aboutTokens is a conversation about a document, all of it. Rendering all costs 0.3 ms for each thousand
// tokens of the document, and is right for every template and tokenizer; the tokens that were read already are
// found by comparing.
func (e *engine) aboutTokens(d *facts, text string, messages []message) ([]waveinfer.Token, error) {
	if e.info.ChatFamily == "" && len(messages) == 1 {
		return e.model.Tokenize(text+"\n"+string(messages[0].Content)+"\n", waveinfer.TokenizeAddBOS)
	}
	messages, err := about(text, messages)
	if err != nil {
		return nil, err
	}
	return e.chatTokens(messages, time.Unix(d.CreatedAt, 0))
}

func commonPrefix(a, b []waveinfer.Token) int {
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	return same
}
