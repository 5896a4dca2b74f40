package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"waveinfer"
)

// use keeps a document in memory until done is called. If it is not there it is brought back, which all who ask for it
// wait for together; progress is called meanwhile, with the tokens that have been read if its text has to be.
func (l *library) use(ctx context.Context, d *document, progress func(done, total int)) (done func(), err error) {
	done = func() {
		l.mu.Lock()
		d.users--
		l.mu.Unlock()
		l.trim()
	}
	l.mu.Lock()
	d.users++
	r, err := l.loading(d)
	if r != nil {
		r.waiting++
	}
	l.mu.Unlock()
	if r != nil {
		_, _, err = l.await(ctx, d.ID, r, progress)
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// loading is what brings a document back; nil: it is in memory. l.mu is held.
func (l *library) loading(d *document) (*reading, error) {
	switch {
	case l.documents[d.ID] != d:
		return nil, noDocument(d.ID)
	case d.held.Load() > 0:
		return nil, nil
	case l.closed:
		return nil, errStopping
	}
	r := l.readings[d.ID]
	if r == nil {
		var ctx context.Context
		ctx, r = l.newReading(d.ID)
		r.goesOn = true
		go l.reload(ctx, r, d)
	}
	return r, nil
}

// reload brings a document back for whoever waits, and for the next one to ask if nobody does any more. If what was
// saved was of no use it is saved again: until then it cannot leave memory.
func (l *library) reload(ctx context.Context, r *reading, d *document) {
	defer l.work.Done()
	defer r.cancel()
	text, session, anew, err := l.load(ctx, r, d)
	l.mu.Lock()
	switch {
	case l.documents[d.ID] != d: // deleted meanwhile
		if session != nil {
			session.Close()
		}
		err = noDocument(d.ID)
	case err == nil:
		d.keep(text, session)
		d.saved.Store(!anew)
	}
	l.forget(d.ID, r)
	l.mu.Unlock()
	r.document, r.err = d, err
	close(r.ended)
	if err != nil {
		return
	}
	if anew {
		l.save(l.base, d)
	}
	l.trim()
}

// load reads a document's files. A session that another model wrote, that was read through another policy, or that is
// damaged or gone, is read anew from the text.
func (l *library) load(ctx context.Context, r *reading, d *document) (text string, session *waveinfer.Session, anew bool, err error) {
	folder := d.where()
	body, err := os.ReadFile(textFile(folder, d.ID))
	text = string(body)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", nil, false, lost(d, "its text is gone")
	case err != nil:
		return "", nil, false, unavailable(d, err)
	case documentID(text) != d.ID:
		return "", nil, false, lost(d, "its text is damaged")
	}
	if err := l.engine.mayTake("document", d.Tokens, 1); err != nil {
		return "", nil, false, err
	}
	session, err = l.loadSession(ctx, sessionFile(folder, d.ID))
	if isAny(err, waveinfer.ErrMismatch, waveinfer.ErrFormat, waveinfer.ErrUnsupported, os.ErrNotExist) {
		slog.Warn("a saved session is of no use: its text is read again", "document", d.ID, "error", err)
		session, err = l.readText(ctx, r, text, time.Unix(d.CreatedAt, 0), func(int) error { return nil })
		return text, session, true, err
	}
	if errors.Is(err, waveinfer.ErrIO) {
		err = unavailable(d, err)
	}
	return text, session, false, err
}

// lost is for what can only come back from whoever sent it.
func lost(d *document, why string) error {
	return newProblem(http.StatusInternalServerError, "server_error", "document", "document_lost",
		fmt.Sprintf("document %s cannot be loaded: %s; delete it and send its text again", d.ID, why))
}

// unavailable is for what may be there the next time. What the system says has the server's paths: those are for the
// log.
func unavailable(d *document, err error) error {
	slog.Error("a document cannot be loaded now", "document", d.ID, "error", err)
	p := newProblem(http.StatusServiceUnavailable, "server_error", "document", "document_unavailable",
		fmt.Sprintf("document %s cannot be loaded now; try again later", d.ID))
	p.retryAfter = 5 * time.Second
	return p
}

// loadSession waits for its memory for as long as tasks do.
func (l *library) loadSession(ctx context.Context, file string) (*waveinfer.Session, error) {
	e := l.engine
	for late := time.Now().Add(e.gate.queueTime); ; {
		session, err := e.model.Load(ctx, file, e.savedSession())
		if ctx.Err() != nil && err != nil {
			return nil, context.Cause(ctx)
		}
		if !errors.Is(err, waveinfer.ErrBudget) {
			return session, err
		}
		if err := e.awaitRoom(ctx, late); err != nil {
			return nil, err
		}
	}
}

// readText reads a text once it is its turn, and tells r how far that is. mayRead may refuse its tokens.
func (l *library) readText(ctx context.Context, r *reading, text string, now time.Time, mayRead func(tokens int) error) (*waveinfer.Session, error) {
	leave, err := l.engine.gate.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	tokens, err := l.engine.opening(text, now)
	if err == nil {
		err = mayRead(len(tokens))
	}
	if err != nil {
		return nil, err
	}
	return l.engine.read(ctx, tokens, func(done, total int) {
		r.done.Store(int64(done))
		r.total.Store(int64(total))
	})
}
