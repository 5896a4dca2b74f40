package main

import (
	"context"
	"strings"
	"time"
)

// reply is an answer, or a piece of one, as OpenAI's API sends it.
type reply struct {
	ID         string      `json:"id"`
	Object     string      `json:"object"`
	Created    int64       `json:"created"`
	Model      string      `json:"model"`
	Choices    []choice    `json:"choices"`
	Usage      *usage      `json:"usage,omitempty"`
	Statistics *statistics `json:"statistics,omitempty"` // this service's own
}

// choice has one of Message, Delta and Text.
type choice struct {
	Index        int     `json:"index"`
	Message      *said   `json:"message,omitempty"`
	Delta        *said   `json:"delta,omitempty"`
	Text         *string `json:"text,omitempty"`
	Logprobs     any     `json:"logprobs"`
	FinishReason *string `json:"finish_reason"`
}

type said struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

// form is how the two endpoints differ in what they send.
type form struct {
	id     string                           // what ids begin with
	whole  string                           // the name of a reply
	piece  string                           // the name of a piece of one
	first  *choice                          // what a stream begins with; nil: nothing
	answer func(text string) choice         // in a reply
	delta  func(text, finish string) choice // in a piece
}

var chatForm = form{
	id: "chatcmpl-", whole: "chat.completion", piece: "chat.completion.chunk",
	first:  &choice{Delta: &said{Role: "assistant", Content: new(string)}},
	answer: func(text string) choice { return choice{Message: &said{Role: "assistant", Content: &text}} },
	delta: func(text, finish string) choice {
		c := choice{Delta: &said{}, FinishReason: orNull(finish)}
		if text != "" {
			c.Delta.Content = &text
		}
		return c
	},
}

var completionForm = form{
	id: "cmpl-", whole: "text_completion", piece: "text_completion",
	answer: func(text string) choice { return choice{Text: &text} },
	delta:  func(text, finish string) choice { return choice{Text: &text, FinishReason: orNull(finish)} },
}

// gather waits for the whole answer.
func (f *form) gather(ctx context.Context, a *answer, q *writing, header reply) (*reply, error) {
	var text strings.Builder
	finish := ""
	for p := range a.pieces(ctx) {
		if p.err != nil {
			return nil, p.err
		}
		a.count(p)
		text.WriteString(p.text)
		finish = p.finish
	}
	if finish == "" { // the client is gone, or the service is to stop
		return nil, context.Cause(ctx)
	}
	whole := f.answer(text.String())
	whole.FinishReason = &finish
	header.Object, header.Choices, header.Usage = f.whole, []choice{whole}, a.usage()
	if q.Statistics {
		header.Statistics = a.statistics()
	}
	return &header, nil
}

// stream sends an answer piece by piece, and [DONE] at its end.
func (f *form) stream(ctx context.Context, events *eventStream, a *answer, q *writing, header reply) error {
	header.Object = f.piece
	send := func(c ...choice) error {
		next := header
		next.Choices = c
		if q.Statistics {
			next.Statistics = a.statistics()
		}
		return events.send(next)
	}
	pieces, finish, introduced := a.pieces(ctx), "", f.first == nil
	for finish == "" {
		p, ok, err := nextPiece(ctx, events, pieces)
		if err == nil && ok && p.err != nil {
			err = p.err
		}
		if err == nil && !ok {
			err = context.Cause(ctx)
		}
		if err == nil && !introduced {
			err, introduced = send(*f.first), true
		}
		if err != nil {
			return err
		}
		a.count(p)
		finish = p.finish
		if p.text == "" && finish == "" && !q.Statistics {
			continue // a code point is incomplete, or what may become a stop string is held back
		}
		if err := send(f.delta(p.text, finish)); err != nil {
			return nil // the client is gone
		}
	}
	if q.StreamOptions.IncludeUsage {
		header.Choices, header.Usage = []choice{}, a.usage()
		if events.send(header) != nil {
			return nil
		}
	}
	events.done()
	return nil
}

// How often a stream says that it is alive while a long prompt is being read: proxies give up on silence. Tests have
// less patience.
var aliveEvery = 10 * time.Second

// nextPiece waits for a piece; not ok: there are no more.
func nextPiece(ctx context.Context, events *eventStream, pieces <-chan piece) (p piece, ok bool, err error) {
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case p, ok = <-pieces:
			return p, ok, nil
		case <-alive.C:
			if err := events.comment("reading"); err != nil {
				return piece{}, false, err
			}
		}
	}
}
