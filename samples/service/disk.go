package main

import (
	"fmt"
	"net/http"
	"os"
)

// Documents that there may be: all of them are listed, and known of in memory. Tests have fewer.
var mostDocuments = 10000

// Besides a document's text and session: its facts, and what a session's file has around keys and values.
const moreBytes = 64 << 10

// mayAdd refuses a new document of so many bytes that there is no room for. None goes by itself: whoever has sent one
// counts on it. r is its reading, if that has begun; l.mu is held.
func (l *library) mayAdd(bytes int64, r *reading) error {
	taken, count := int64(0), len(l.documents)
	for _, d := range l.documents {
		taken += d.disk
	}
	for id, other := range l.readings {
		if l.documents[id] == nil && other != r {
			taken += other.disk
			count++
		}
	}
	if count >= mostDocuments {
		return documentsFull("there are %d documents, and may be no more; delete some", count)
	}
	if l.disk > 0 && taken+bytes > l.disk {
		return documentsFull("the document takes %d bytes on disk; of %d that documents may take there, %d are free; delete some",
			bytes, l.disk, max(l.disk-taken, 0))
	}
	return nil
}

func documentsFull(format string, values ...any) error {
	return newProblem(http.StatusInsufficientStorage, "server_error", "", "documents_full", fmt.Sprintf(format, values...))
}

// reserve is mayAdd for a text that is about to be read, once its tokens are known.
func (l *library) reserve(r *reading, text, tokens int) error {
	plan, err := l.engine.model.PlanMemory(&l.engine.session, tokens)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes := int64(text) + int64(plan.KVBytes+plan.IndexBytes) + moreBytes
	if err := l.mayAdd(bytes, r); err != nil {
		return err
	}
	r.disk = bytes
	return nil
}

// saved is the bytes of a document's files.
func (l *library) saved(id string) (bytes int64) {
	for _, folder := range []string{l.folder.path, l.earlier} {
		for _, file := range []string{factsFile(folder, id), sessionFile(folder, id), textFile(folder, id)} {
			if info, err := os.Stat(file); err == nil {
				bytes += info.Size()
			}
		}
	}
	return bytes
}

// onDisk is the bytes of all documents' files, and how many documents have none yet.
func (l *library) onDisk() (bytes int64, unsaved int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.documents {
		bytes += d.disk
		if !d.saved.Load() {
			unsaved++
		}
	}
	return bytes, unsaved
}
