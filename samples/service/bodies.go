package main

import (
	"io"
	"sync/atomic"
	"time"
)

// bodies is the memory for what all requests together have sent and nobody has answered yet. Connections are not
// counted, and each may send a document. What is made of a body is of its size: of lists no more is decoded than can be
// of use (json.go).
type bodies struct {
	free atomic.Int64 // bytes
}

// So many of the largest request.
const bodiesOf = 8

// How soon a request that found no room might do better.
const bodiesRetry = 5 * time.Second

// countedBody is a request's body as it comes in. giveBack must follow.
type countedBody struct {
	io.ReadCloser
	of    *bodies
	taken int64
	ended bool // all of it has come
}

func (b *countedBody) Read(data []byte) (int, error) {
	n, err := b.ReadCloser.Read(data)
	b.taken += int64(n)
	b.ended = b.ended || err == io.EOF
	if b.of.free.Add(-int64(n)) < 0 {
		return 0, tooBusy(bodiesRetry, "too_many_bytes", "other requests have sent too much; try again later")
	}
	return n, err
}

func (b *countedBody) giveBack() { b.of.free.Add(b.taken) }
