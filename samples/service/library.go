package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"waveinfer"
)

// library is the documents: those in memory, and those in the folder only.
type library struct {
	engine  *engine
	folder  *folder
	earlier string // where services before this one have saved documents, of whichever model: they stay as they are
	most    uint64 // bytes of documents in memory that nobody is using
	base    context.Context
	work    sync.WaitGroup // readings and saves
	needed  chan struct{}  // has an element when memory is needed that only documents have which are not saved
	disk    int64          // most bytes of files; 0: no bound

	mu        sync.Mutex
	documents map[string]*document
	readings  map[string]*reading
	closed    bool // nothing new is read

	savedAgain chan struct{} // closed when saveAgain has ended
}

// reading is a text that is being read, for all who have sent it, or a document that is brought back into memory, for
// all who ask it. A text's ends when all of them are gone: whoever sends it then has it read anew.
type reading struct {
	waiting     int  // guarded by library.mu
	goesOn      bool // when nobody is waiting any more
	cancel      context.CancelFunc
	done, total atomic.Int64 // tokens
	disk        int64        // bytes that its files will take; guarded by library.mu
	ended       chan struct{}
	document    *document // once it has ended
	err         error
}

// openLibrary finds what earlier runs have saved. base ends what is being read.
func openLibrary(base context.Context, e *engine, o options) (*library, error) {
	stats, err := e.runtime.Stats()
	if err != nil {
		return nil, err
	}
	model, err := identityOf(o.model)
	if err != nil {
		return nil, err
	}
	folder, err := openFolder(o.documents, model)
	if err != nil {
		return nil, err
	}
	l := &library{
		engine: e, folder: folder, earlier: o.documents, base: base, most: stats.KVBudgetBytes / 2, disk: o.documentsDisk,
		needed: make(chan struct{}, 1), documents: map[string]*document{}, readings: map[string]*reading{},
		savedAgain: make(chan struct{}),
	}
	e.makeRoom = l.makeRoom
	err = l.find(l.earlier)
	if err == nil {
		err = l.find(l.folder.path) // which is this model's, and goes first
	}
	if err == nil {
		err = l.clean()
	}
	if err != nil {
		folder.close()
		return nil, err
	}
	for id, d := range l.documents {
		d.disk = l.saved(id)
	}
	slog.Info("documents", "folder", folder.path, "found", len(l.documents))
	go l.saveAgain()
	return l, nil
}

// find takes in the documents of a folder.
func (l *library) find(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		id, isFacts := strings.CutSuffix(entry.Name(), ".json")
		if !isFacts {
			continue
		}
		var known facts
		body, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(body, &known)
		}
		if err == nil && (known.ID != id || !isDocumentID(id)) {
			err = fmt.Errorf("it is of document %q", known.ID)
		}
		if err != nil {
			slog.Warn("a saved document is left alone", "file", path, "error", err)
			continue
		}
		d := newDocument(folder, known)
		d.saved.Store(true)
		l.documents[d.ID] = d
	}
	return nil
}

// clean removes what a process that was killed has left in the folder: it was before the facts were written, or after
// they were removed. Nobody else is writing there, as nobody else has the folder.
func (l *library) clean() error {
	entries, err := os.ReadDir(l.folder.path)
	if err != nil {
		return err
	}
	hasFacts := map[string]bool{}
	for _, entry := range entries {
		if id, isFacts := strings.CutSuffix(entry.Name(), ".json"); isFacts {
			hasFacts[id] = true
		}
	}
	for _, entry := range entries {
		extension := filepath.Ext(entry.Name())
		id := strings.TrimSuffix(entry.Name(), extension)
		ours := (extension == ".txt" || extension == ".session") && isDocumentID(id)
		if strings.HasPrefix(entry.Name(), temporary) || ours && !hasFacts[id] {
			os.Remove(filepath.Join(l.folder.path, entry.Name()))
		}
	}
	return nil
}

// read reads a text, or finds it: then it is not new. progress is told now and then how far that is.
func (l *library) read(ctx context.Context, name, text string, progress func(done, total int)) (d *document, isNew bool, err error) {
	id := documentID(text)
	l.mu.Lock()
	if d := l.documents[id]; d != nil {
		l.mu.Unlock()
		return d, false, nil
	}
	if l.closed {
		l.mu.Unlock()
		return nil, false, errStopping
	}
	r := l.readings[id]
	if r == nil {
		if err := l.mayAdd(int64(len(text)), nil); err != nil {
			l.mu.Unlock()
			return nil, false, err
		}
		var work context.Context
		work, r = l.newReading(id)
		go l.run(work, r, id, name, text)
	}
	r.waiting++
	l.mu.Unlock()
	return l.await(ctx, id, r, progress)
}

// newReading is for a goroutine that is about to start, with the context of its work; l.mu is held.
func (l *library) newReading(id string) (context.Context, *reading) {
	work, cancel := context.WithCancel(l.base)
	r := &reading{cancel: cancel, ended: make(chan struct{})}
	l.readings[id] = r
	l.work.Add(1)
	return work, r
}

func (l *library) await(ctx context.Context, id string, r *reading, progress func(done, total int)) (*document, bool, error) {
	tick := time.NewTicker(lookAfter)
	defer tick.Stop()
	for {
		select {
		case <-r.ended:
			return r.document, true, r.err
		case <-tick.C:
			progress(int(r.done.Load()), int(r.total.Load()))
		case <-ctx.Done():
			l.mu.Lock()
			defer l.mu.Unlock()
			if r.waiting--; r.waiting == 0 && !r.goesOn {
				r.cancel()
				l.forget(id, r)
			}
			return nil, false, context.Cause(ctx)
		}
	}
}

// forget lets nobody wait for a reading any more; l.mu is held.
func (l *library) forget(id string, r *reading) {
	if l.readings[id] == r {
		delete(l.readings, id)
	}
}

// run reads a text, for whoever waits, and saves it.
func (l *library) run(ctx context.Context, r *reading, id, name, text string) {
	defer l.work.Done()
	defer r.cancel()
	now := time.Now()
	d, err := l.readNew(ctx, r, facts{ID: id, Name: name, Bytes: len(text), CreatedAt: now.Unix()}, text)
	l.mu.Lock()
	switch known := l.documents[id]; {
	case err == nil && known != nil: // by a reading that was given up too late
		d.takeOut().Close()
		d = known
	case err == nil:
		d.disk = r.disk
		l.documents[id] = d
	}
	l.forget(id, r)
	l.mu.Unlock()
	r.document, r.err = d, err
	close(r.ended)
	if err != nil {
		return
	}
	slog.Info("read", "document", id, "name", name, "tokens", d.Tokens, "took", time.Since(now).Round(time.Millisecond))
	l.save(l.base, d)
	l.trim()
}

func (l *library) readNew(ctx context.Context, r *reading, known facts, text string) (*document, error) {
	session, err := l.readText(ctx, r, text, time.Unix(known.CreatedAt, 0), func(tokens int) error {
		return l.reserve(r, len(text), tokens)
	})
	if err != nil {
		return nil, err
	}
	stats, err := session.Stats()
	if err != nil {
		session.Close()
		return nil, err
	}
	known.Tokens = stats.Tokens
	d := newDocument("", known)
	d.keep(text, session)
	return d, nil
}

// save is tried again later if it fails, and when the service ends. A document that is not saved stays in memory.
func (l *library) save(ctx context.Context, d *document) error {
	err := d.save(ctx, l.folder.path)
	if err != nil && !errors.Is(err, errStopping) {
		slog.Error("a document is not saved", "document", d.ID, "error", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.documents[d.ID] == nil { // deleted meanwhile
		l.removeFiles(d.ID)
	}
	if err != nil {
		d.failures, d.failedAt = d.failures+1, time.Now()
		return err
	}
	d.failures = 0
	if d.saved.Load() {
		d.disk = l.saved(d.ID)
	}
	return nil
}

// How soon what could not be saved is tried again; twice as long after each time, up to half an hour. Tests have less
// patience.
var saveAfter = 30 * time.Second

const mostDoublings = 6

// saveAgain tries to save what could not be, until the service ends.
func (l *library) saveAgain() {
	defer close(l.savedAgain)
	tick := time.NewTicker(saveAfter)
	defer tick.Stop()
	for {
		hurry := false
		select {
		case <-l.base.Done():
			return
		case <-tick.C:
		case <-l.needed:
			hurry = true
		}
		for _, d := range l.unsaved(hurry) {
			l.save(l.base, d)
			l.work.Done()
		}
		l.trim()
	}
}

// unsaved are the documents that should be tried again now, each counted as work; hurry: also those that would wait
// for longer than the first time, but a disk that is full is not written to all the time.
func (l *library) unsaved(hurry bool) []*document {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*document
	for _, d := range l.documents {
		if d.failures == 0 || l.closed {
			continue
		}
		after := saveAfter
		if !hurry {
			after <<= min(d.failures-1, mostDoublings)
		}
		if time.Since(d.failedAt) >= after {
			list = append(list, d)
			l.work.Add(1)
		}
	}
	return list
}

// removeFiles forgets what was saved, by services before this one too: the document would come back.
func (l *library) removeFiles(id string) error {
	return errors.Join(removeFiles(l.folder.path, id), removeFiles(l.earlier, id))
}

func noDocument(id string) error {
	return newProblem(http.StatusNotFound, "invalid_request_error", "document", "document_not_found", "there is no document "+id)
}

func (l *library) get(id string) (*document, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.documents[id]; d != nil {
		return d, nil
	}
	return nil, noDocument(id)
}

// all lists the documents, the newest first.
func (l *library) all() []*document {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]*document, 0, len(l.documents))
	for _, d := range l.documents {
		list = append(list, d)
	}
	sort.Slice(list, func(i, j int) bool {
		if list[i].CreatedAt != list[j].CreatedAt {
			return list[i].CreatedAt > list[j].CreatedAt
		}
		return list[i].ID < list[j].ID
	})
	return list
}

// delete forgets a document. Questions that are being answered go on.
func (l *library) delete(id string) error {
	session, err := l.remove(id)
	if session != nil {
		session.Close()
	}
	return err
}

func (l *library) remove(id string) (*waveinfer.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.documents[id]
	if d == nil {
		return nil, noDocument(id)
	}
	if err := l.removeFiles(id); err != nil {
		return nil, err
	}
	delete(l.documents, id)
	if r := l.readings[id]; r != nil {
		r.cancel()
		l.forget(id, r)
	}
	return d.takeOut(), nil
}

// makeRoom takes the document out of memory that nobody has used for the longest time. False: there is none that is
// saved and that nobody is using: what is being asked shares its memory with the questions, which would not be free.
func (l *library) makeRoom() bool {
	if l.letGo(false) {
		return true
	}
	select {
	case l.needed <- struct{}{}: // documents that are not saved may be what has it
	default:
	}
	return false
}

// trim makes room until documents hold no more than they may, but for the one that was used last: whoever asked it
// will ask again, and it would have to be loaded each time.
func (l *library) trim() {
	for held, _ := l.held(); held > l.most && l.letGo(true); held, _ = l.held() {
	}
}

// letGo is makeRoom; butLast: not the one that was used last.
func (l *library) letGo(butLast bool) bool {
	session := l.leastUsed(butLast)
	if session != nil {
		session.Close() // which takes its time for gigabytes: nobody waits for that
	}
	return session != nil
}

// leastUsed takes a document's session out that may leave; nil: there is none.
func (l *library) leastUsed(butLast bool) *waveinfer.Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*document
	for _, d := range l.documents {
		if d.held.Load() > 0 {
			list = append(list, d)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].usedAt.Load() < list[j].usedAt.Load() })
	if butLast && len(list) > 0 {
		list = list[:len(list)-1]
	}
	for _, d := range list {
		if d.users == 0 && d.saved.Load() {
			return d.takeOut()
		}
	}
	return nil
}

// held is the bytes of documents in memory, and how many they are.
func (l *library) held() (bytes uint64, count int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.documents {
		if held := d.held.Load(); held > 0 {
			bytes += held
			count++
		}
	}
	return bytes, count
}

// close waits for what is being read and saved, saves what is not saved yet, and lets go of all. base has ended: with
// it readings end, and saveAgain, which may be closing sessions.
func (l *library) close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.work.Wait()
	<-l.savedAgain
	var failed error
	for _, d := range l.all() {
		if err := l.save(ctx, d); err != nil {
			failed = errors.Join(failed, fmt.Errorf("document %s is not saved: %w", d.ID, err))
		}
		if session := d.takeOut(); session != nil {
			session.Close()
		}
	}
	l.folder.close()
	return failed
}
