package waveinfer

// #include "callback.h"
import "C"

import "time"

// ChatMessage is one message of a conversation.
type ChatMessage struct {
	Role    string // "system", "user", "assistant", "tool" or what the template knows; not from strangers
	Content string // the text; "": an empty one, or what FieldsJSON calls content
	// "", or a JSON object: more fields of the message, such as tool_calls or name. It may name content if
	// Content is empty, to pass null or a list of parts.
	FieldsJSON string
}

// ChatParams say how a conversation is rendered; zero means default.
type ChatParams struct {
	AddGenerationPrompt bool      // end with the opening of the assistant's answer
	ToolsJSON           string    // "", or a JSON array of function schemas
	VariablesJSON       string    // "", or a JSON object: {"enable_thinking": false}
	Now                 time.Time // for templates that print a date, in whole seconds. Zero: the clock's
}

// ChatRender renders a conversation, oldest message first, with the chat template of the model's file, as the
// text that the model was trained on: byte for byte as Hugging Face transformers does. To hand a conversation
// to a session take [Model.ChatTokens]: in this text, what a user wrote can no longer be told from what the
// template wrote. nil params mean all defaults.
//
// Errors: [ErrUnsupported] if the file has no template (ModelInfo.ChatFamily is empty), or if the template
// uses something that the library does not know or reaches a limit; [ErrFormat] for a template that is
// broken; [ErrArgument] for a conversation that the template refuses, with its own words, and for JSON that
// is none.
func (m *Model) ChatRender(messages []ChatMessage, params *ChatParams) (string, error) {
	var pinned pins
	defer pinned.Unpin()
	first, count, p := pinned.chat(messages, params)
	if pinned.err != nil {
		return "", pinned.err
	}
	return m.text(1024, func(c *call, to *C.char, capacity C.uint64_t, length *C.uint64_t) C.wi_status {
		return C.wi_model_chat_render(m.handle.object, first, count, p, to, capacity, length, &c.error)
	})
}

// ChatTokens renders a conversation as [Model.ChatRender] does, to token ids. Only the template's own text
// makes control tokens: every byte that came from a message's content or fields, tools or variables is text,
// also where it spells <|end|>. BOS is among them where the template prints it, so nothing is to be added:
// pass them to [Session.Prefill]. Errors: as ChatRender.
func (m *Model) ChatTokens(messages []ChatMessage, params *ChatParams) ([]Token, error) {
	var pinned pins
	defer pinned.Unpin()
	first, count, p := pinned.chat(messages, params)
	if pinned.err != nil {
		return nil, pinned.err
	}
	bytes := 0
	for _, message := range messages {
		bytes += len(message.Content)
	}
	return m.tokens(256+bytes/3, func(c *call, to *C.int32_t, capacity C.uint64_t, ids *C.uint64_t) C.wi_status {
		return C.wi_model_chat_tokens(m.handle.object, first, count, p, to, capacity, ids, &c.error)
	})
}

func (p *pins) chat(from []ChatMessage, params *ChatParams) (*C.wi_chat_message, C.uint64_t, *C.wi_chat_params) {
	messages := make([]C.wi_chat_message, max(len(from), 1))
	for i, message := range from {
		to := &messages[i]
		to.struct_size = C.sizeof_wi_chat_message
		to.role = p.name("ChatMessage.Role", message.Role)
		to.content, to.content_length = p.text(message.Content)
		to.fields_json = p.name("ChatMessage.FieldsJSON", message.FieldsJSON)
	}
	to := &C.wi_chat_params{struct_size: C.sizeof_wi_chat_params}
	if params != nil {
		if params.AddGenerationPrompt {
			to.flags |= C.WI_CHAT_ADD_GENERATION_PROMPT
		}
		to.tools_json = p.name("ChatParams.ToolsJSON", params.ToolsJSON)
		to.variables_json = p.name("ChatParams.VariablesJSON", params.VariablesJSON)
		if !params.Now.IsZero() {
			to.now = C.int64_t(params.Now.Unix())
		}
	}
	return &messages[0], C.uint64_t(len(from)), to
}
