package waveinfer

// #include <waveinfer.h>
import "C"

import (
	"strconv"
	"unsafe"
)

// EventKind says what an event is. Kinds that a program does not know end an answer too: go on while the kind
// is EventToken.
type EventKind int32

// The kinds of events.
const (
	EventToken EventKind = C.WI_EVENT_TOKEN
	// The token ends the answer; Text is what was held back: an incomplete code point, what might have become
	// a stop string.
	EventEnd EventKind = C.WI_EVENT_END
	// The token completes one of the stop strings; Text is what was held back before that.
	EventStop EventKind = C.WI_EVENT_STOP

	// Of tasks only, each without a token (it is -1) and the last event of its task.
	EventLimit     EventKind = C.WI_EVENT_LIMIT // TaskParams.MaxTokens tokens were written
	EventCancelled EventKind = C.WI_EVENT_CANCELLED
	EventFailed    EventKind = C.WI_EVENT_FAILED // Task.Info says why
)

// String returns the kind's name, "token" for [EventToken].
func (k EventKind) String() string {
	return nameOf(int32(k), map[int32]string{
		C.WI_EVENT_TOKEN: "token", C.WI_EVENT_END: "end", C.WI_EVENT_STOP: "stop",
		C.WI_EVENT_LIMIT: "limit", C.WI_EVENT_CANCELLED: "cancelled", C.WI_EVENT_FAILED: "failed",
	})
}

// nameOf is a value by name, or by number where it has none.
func nameOf(value int32, names map[int32]string) string {
	if name, ok := names[value]; ok {
		return name
	}
	return strconv.Itoa(int(value))
}

// TokenLogprob is a token and the natural logarithm of its probability.
type TokenLogprob struct {
	Token   Token   // its id
	Logprob float32 // as in Event
}

// Event is a token that was written.
type Event struct {
	Kind  EventKind // EventToken, or how the answer ends
	Token Token     // its id, in [0, vocab); -1: none
	// UTF-8, whole code points, U+FFFD for what can never become one; empty while a code point is incomplete,
	// and for control tokens.
	Text string
	// Natural logarithm of the token's probability under the model itself: softmax of its logits at
	// temperature 1, before bias, callback, penalty and cuts.
	Logprob float32
	// The likeliest tokens under the same softmax, best first, if SamplingParams.TopLogprobs asks for them.
	Top []TokenLogprob
}

// eventOf copies an event, whose text is C's until its next call.
func eventOf(e *C.wi_event) Event {
	event := Event{
		Kind:    EventKind(e.kind),
		Token:   Token(e.token),
		Text:    string(unsafe.Slice((*byte)(unsafe.Pointer(e.text)), e.text_length)),
		Logprob: float32(e.logprob),
	}
	if e.top_count > 0 {
		event.Top = make([]TokenLogprob, e.top_count)
		for i, top := range unsafe.Slice(e.top, e.top_count) {
			event.Top[i] = TokenLogprob{Token: Token(top.token), Logprob: float32(top.logprob)}
		}
	}
	return event
}
