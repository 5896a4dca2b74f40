package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"

	"waveinfer"
)

// facts are what is known of a document that has been read; they never change, and are saved beside it.
type facts struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Bytes     int    `json:"bytes"`
	Tokens    int    `json:"tokens"`
	CreatedAt int64  `json:"created_at"`
}

// document is a text that has been read: its session, which is never asked itself but forked.
type document struct {
	facts
	usedAt atomic.Int64  // ns
	held   atomic.Uint64 // bytes of keys, values and index; 0: it is not in memory
	saved  atomic.Bool
	saving atomic.Bool // by somebody who is at it
	users  int         // questions that are being answered; guarded by library.mu

	lock    chan struct{}      // has one element while somebody uses what follows
	folder  string             // where its files are, once it is saved
	text    string             // "" while it is not in memory
	session *waveinfer.Session // nil likewise
	deleted bool
}

// documentID names a text by its content.
func documentID(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "doc-" + hex.EncodeToString(hash[:16])
}

var documentIDs = regexp.MustCompile("^doc-[0-9a-f]{32}$")

func isDocumentID(name string) bool { return documentIDs.MatchString(name) }

func newDocument(folder string, known facts) *document {
	return &document{facts: known, folder: folder, lock: make(chan struct{}, 1)}
}

// A document's three files. The facts come last and go first: where they are, the others are whole.
func textFile(folder, id string) string    { return filepath.Join(folder, id+".txt") }
func sessionFile(folder, id string) string { return filepath.Join(folder, id+".session") }
func factsFile(folder, id string) string   { return filepath.Join(folder, id+".json") }

func (d *document) acquire(ctx context.Context) error {
	select {
	case d.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *document) release() { <-d.lock }

// keep puts what has been read or loaded into memory; d is acquired.
func (d *document) keep(text string, session *waveinfer.Session) {
	d.text, d.session = text, session
	d.usedAt.Store(time.Now().UnixNano())
	d.held.Store(1)
	if stats, err := session.Stats(); err == nil {
		d.held.Store(stats.KVBytes)
	}
}

// drop takes it out of memory; forks of it go on. d is acquired.
func (d *document) drop() {
	if d.session != nil {
		d.session.Close()
	}
	d.text, d.session = "", nil
	d.held.Store(0)
}

// fork gives a session that has read the document, which is loaded if it is not in memory, and its text.
func (d *document) fork(ctx context.Context, e *engine) (*waveinfer.Session, string, error) {
	if err := d.acquire(ctx); err != nil {
		return nil, "", err
	}
	defer d.release()
	if d.deleted {
		return nil, "", noDocument(d.ID)
	}
	if d.session == nil {
		if err := d.load(ctx, e); err != nil {
			return nil, "", err
		}
	}
	d.usedAt.Store(time.Now().UnixNano())
	session, err := d.session.Fork()
	return session, d.text, err
}

// load brings the document back from its files. A session that another model wrote, that was read through another
// policy, or that is damaged, is read anew from the text; d is acquired.
func (d *document) load(ctx context.Context, e *engine) error {
	text, err := os.ReadFile(textFile(d.folder, d.ID))
	if err == nil && documentID(string(text)) != d.ID {
		err = errors.New("its text is damaged")
	}
	if err != nil {
		return newProblem(http.StatusInternalServerError, "server_error", "document", "document_lost",
			fmt.Sprintf("document %s cannot be loaded: %s; delete it and send its text again", d.ID, err))
	}
	params, file := e.savedSession(), sessionFile(d.folder, d.ID)
	session, err := e.model.Load(ctx, file, params)
	for errors.Is(err, waveinfer.ErrBudget) && e.makeRoom() {
		session, err = e.model.Load(ctx, file, params)
	}
	if errors.Is(err, waveinfer.ErrCancelled) || errors.Is(err, waveinfer.ErrBudget) || errors.Is(err, waveinfer.ErrMemory) {
		return err
	}
	if err != nil {
		slog.Warn("a saved session is of no use: its text is read again", "document", d.ID, "error", err)
		if session, err = e.readText(ctx, string(text), time.Unix(d.CreatedAt, 0), func(int, int) {}); err != nil {
			return err
		}
		d.saved.Store(false)
	}
	d.keep(string(text), session)
	return nil
}

// readText reads a text as what all conversations about it begin with.
func (e *engine) readText(ctx context.Context, text string, now time.Time, progress func(done, total int)) (*waveinfer.Session, error) {
	tokens, err := e.opening(text, now)
	if err != nil {
		return nil, err
	}
	return e.read(ctx, tokens, progress)
}

// save writes the document's files if they are not there and nobody else is writing them. It works on a fork, so
// that questions are answered meanwhile.
func (d *document) save(ctx context.Context, folder string) error {
	if !d.saving.CompareAndSwap(false, true) {
		return nil
	}
	defer d.saving.Store(false)
	if err := d.acquire(ctx); err != nil {
		return err
	}
	if d.session == nil || d.deleted || d.saved.Load() {
		d.release()
		return nil
	}
	text := d.text
	session, err := d.session.Fork()
	d.release()
	if err != nil {
		return err
	}
	defer session.Close()
	known, err := json.Marshal(d.facts)
	if err == nil {
		err = writeFile(textFile(folder, d.ID), []byte(text))
	}
	if err == nil {
		err = session.Save(ctx, sessionFile(folder, d.ID))
	}
	if err == nil {
		err = writeFile(factsFile(folder, d.ID), known)
	}
	if err != nil {
		return err
	}
	d.lock <- struct{}{}
	defer d.release()
	d.folder = folder
	d.saved.Store(true)
	return nil
}

func removeFiles(folder, id string) error {
	var failed error
	for _, file := range []string{factsFile(folder, id), sessionFile(folder, id), textFile(folder, id)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// temporary is how names of files begin that are not whole yet.
const temporary = ".part-"

// writeFile writes a file that is there whole or not at all.
func writeFile(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), temporary+"*")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return err
}
