package main

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// saveSoon has less patience with what could not be saved while a test runs.
func saveSoon(t *testing.T, after time.Duration) {
	t.Helper()
	usual := saveAfter
	t.Cleanup(func() { saveAfter = usual }) // once the service has ended
	saveAfter = after
}

func (r *running) metric(name string) string {
	r.t.Helper()
	response, err := r.send(r.t.Context(), "GET", "/metrics", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	var text strings.Builder
	if err := response.Write(&text); err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func TestADocumentThatCouldNotBeSavedIsSavedLater(t *testing.T) {
	saveSoon(t, 20*time.Millisecond)
	r := start(t, nil)
	putBack := r.takeFolderAway()
	id, _ := r.read(someText(random(t), 50))
	r.service.library.work.Wait()
	if unsaved := r.metric("waveinfer_documents_unsaved"); unsaved != "1" {
		t.Errorf("%q are not saved", unsaved)
	}
	putBack()
	eventually(t, "it is saved", func() bool { return len(r.files()) == 3 })
	eventually(t, "it may leave memory", r.service.library.makeRoom)
	if unsaved := r.metric("waveinfer_documents_unsaved"); unsaved != "0" {
		t.Errorf("%q are not saved", unsaved)
	}
	r.ask(id)
}

func TestADocumentWhoseMemoryIsNeededIsSavedSooner(t *testing.T) {
	saveSoon(t, time.Second)
	r := start(t, nil)
	putBack := r.takeFolderAway()
	id, _ := r.read(someText(random(t), 50))
	l := r.service.library
	l.work.Wait()
	d, err := l.get(id)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	d.failures = mostDoublings // so that it would be a minute
	l.mu.Unlock()
	putBack()
	eventually(t, "it leaves memory", l.makeRoom)
}

func TestDocumentsTakeNoMoreOfTheDiskThanTheyMay(t *testing.T) {
	folder := t.TempDir()
	r := start(t, func(o *options) { o.documents, o.documentsDisk = folder, 3<<20 })
	random := random(t)
	id, _ := r.read(someText(random, 50)) // some 2 MB
	status, answer := r.call("POST", "/v1/documents", someText(random, 50))
	if message, _ := at(answer, "error/message").(string); status != http.StatusInsufficientStorage ||
		at(answer, "error/code") != "documents_full" || !strings.Contains(message, "delete") {
		t.Errorf("status %d, %v", status, answer)
	}
	r.idle()
	r.service.library.work.Wait()
	bytes := int64(0)
	for _, name := range r.files() {
		info, err := os.Stat(r.folder() + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		bytes += info.Size()
	}
	if known, _ := r.service.library.onDisk(); known != bytes || bytes > 3<<20 {
		t.Errorf("the files have %d bytes, known are %d", bytes, known)
	}
	r.stop()
	again := start(t, func(o *options) { o.documents, o.documentsDisk = folder, 3<<20 })
	if status, answer := again.call("POST", "/v1/documents", someText(random, 50)); at(answer, "error/code") != "documents_full" {
		t.Errorf("after a restart: status %d, %v", status, answer)
	}
	again.call("DELETE", "/v1/documents/"+id, nil)
	again.read(someText(random, 50))
}

func TestAReservedPartOfTheDiskIsEnough(t *testing.T) {
	r := start(t, nil)
	l := r.service.library
	for _, sentences := range []int{1, 50, 500} {
		id, document := r.read(someText(random(t), sentences))
		expected := &reading{}
		if err := l.reserve(expected, int(document["bytes"].(float64)), int(document["tokens"].(float64))); err != nil {
			t.Fatal(err)
		}
		l.work.Wait()
		if bytes := l.saved(id); bytes > expected.disk || bytes < expected.disk/2-moreBytes {
			t.Errorf("a document of %v tokens takes %d bytes, %d were expected", document["tokens"], bytes, expected.disk)
		}
	}
}

func TestThereAreNoMoreDocumentsThanMayBe(t *testing.T) {
	usual := mostDocuments
	t.Cleanup(func() { mostDocuments = usual })
	mostDocuments = 1
	r := start(t, nil)
	r.read(fact)
	r.read(fact) // which is the same one
	if status, answer := r.call("POST", "/v1/documents", question); status != http.StatusInsufficientStorage || at(answer, "error/code") != "documents_full" {
		t.Errorf("status %d, %v", status, answer)
	}
}
