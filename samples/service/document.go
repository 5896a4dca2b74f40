package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"sync"
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

	// Guarded by library.mu.
	users    int       // questions that are being answered
	disk     int64     // bytes of its files, or that they will have
	failures int       // of saving it, one after the other
	failedAt time.Time // the last one

	mu      sync.Mutex
	folder  string             // where its files are, once it is saved
	text    string             // "" while it is not in memory
	session *waveinfer.Session // nil likewise
}

// documentID names a text by its content.
func documentID(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "doc-" + hex.EncodeToString(hash[:16])
}

var documentIDs = regexp.MustCompile("^doc-[0-9a-f]{32}$")

func isDocumentID(name string) bool { return documentIDs.MatchString(name) }

func newDocument(folder string, known facts) *document {
	return &document{facts: known, folder: folder}
}

// A document's three files. The facts come last and go first: where they are, the others are whole.
func textFile(folder, id string) string    { return filepath.Join(folder, id+".txt") }
func sessionFile(folder, id string) string { return filepath.Join(folder, id+".session") }
func factsFile(folder, id string) string   { return filepath.Join(folder, id+".json") }

// where is where its files are.
func (d *document) where() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.folder
}

// keep puts what has been read or loaded into memory.
func (d *document) keep(text string, session *waveinfer.Session) {
	held := uint64(1)
	if stats, err := session.Stats(); err == nil {
		held = stats.KVBytes
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.text, d.session = text, session
	d.usedAt.Store(time.Now().UnixNano())
	d.held.Store(held)
}

// takeOut takes it out of memory, once its session is closed; forks of that go on. nil: it is not there.
func (d *document) takeOut() *waveinfer.Session {
	d.mu.Lock()
	defer d.mu.Unlock()
	session := d.session
	d.text, d.session = "", nil
	d.held.Store(0)
	return session
}

// fork gives a session that has read the document, and its text; nil: it is not in memory.
func (d *document) fork() (*waveinfer.Session, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session == nil {
		return nil, "", nil
	}
	session, err := d.session.Fork()
	return session, d.text, err
}

// ask is fork for a question. Whoever uses the document finds it in memory, unless it was deleted.
func (d *document) ask() (*waveinfer.Session, string, error) {
	d.usedAt.Store(time.Now().UnixNano())
	session, text, err := d.fork()
	if session == nil && err == nil {
		err = noDocument(d.ID)
	}
	return session, text, err
}

// save writes the document's files if they are not there and nobody else is writing them. It works on a fork, so
// that questions are answered meanwhile.
func (d *document) save(ctx context.Context, folder string) error {
	if !d.saving.CompareAndSwap(false, true) {
		return nil
	}
	defer d.saving.Store(false)
	if d.saved.Load() {
		return nil
	}
	session, text, err := d.fork()
	if session == nil {
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
	d.mu.Lock()
	defer d.mu.Unlock()
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
