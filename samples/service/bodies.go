package main

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// bodies is the memory for what all requests together have sent and nobody has answered yet. Connections are not
// counted, and each may send a document. What is made of a body is of its size: of lists no more is decoded than can be
// of use (json.go). Who sends documents slowly takes no other request its room.
type bodies struct {
	documents, others atomic.Int64 // bytes that are free for them
}

// So many of the largest request, half of them documents.
const bodiesOf = 8

// The beginning of every body has room: so much is of the order of what a connection takes by itself.
const smallBody = 16 << 10

// How soon a request that found no room might do better.
const bodiesRetry = 5 * time.Second

// share divides the memory for bodies.
func (b *bodies) share(bytes int64) {
	b.documents.Store(bytes / 2)
	b.others.Store(bytes - bytes/2)
}

// count has the body of a request for a path counted.
func (b *bodies) count(path string, body io.ReadCloser) *countedBody {
	if path == documentsPath {
		return &countedBody{ReadCloser: body, free: &b.documents}
	}
	return &countedBody{ReadCloser: body, free: &b.others}
}

// countedBody is a request's body as it comes in. giveBack must follow.
type countedBody struct {
	io.ReadCloser
	free  *atomic.Int64
	read  int64
	taken int64 // of free
	ended bool  // all of it has come
}

func (b *countedBody) Read(data []byte) (int, error) {
	n, err := b.ReadCloser.Read(data)
	b.read += int64(n)
	b.ended = b.ended || err == io.EOF
	take := max(b.read-smallBody-b.taken, 0)
	b.taken += take
	if b.free.Add(-take) < 0 && take > 0 {
		return 0, tooBusy(bodiesRetry, "too_many_bytes", "other requests have sent too much; try again later")
	}
	return n, err
}

func (b *countedBody) giveBack() { b.free.Add(b.taken) }

// How long a client may take to send a request, and the next piece of it. Tests have less patience.
const readTime = time.Minute

var pieceTime = 10 * time.Second

// patient reads a body for so long as its client may take.
type patient struct {
	io.Reader
	control *http.ResponseController
	end     time.Time
}

func (p *patient) Read(data []byte) (int, error) {
	deadline := time.Now().Add(pieceTime)
	if deadline.After(p.end) {
		deadline = p.end
	}
	p.control.SetReadDeadline(deadline)
	return p.Reader.Read(data)
}
