package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"waveinfer"
)

// read has the service read a text.
func (r *running) read(text string) (id string, document object) {
	r.t.Helper()
	document = r.post("/v1/documents?name=book", text)
	id, _ = document["id"].(string)
	return id, document
}

func (r *running) ask(id string) object {
	r.t.Helper()
	return r.post("/v1/documents/"+id+"/ask", object{"question": question})
}

func TestADocumentIsReadOnceAndAskedFromForks(t *testing.T) {
	r := start(t, nil)
	id, document := r.read(someText(random(t), 100))
	if document["name"] != "book" || document["new"] != true || document["loaded"] != true {
		t.Errorf("the document is %v", document)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			answer := r.ask(id)
			if at(answer, "choices/0/message/content") != fact {
				t.Errorf("the answer is %v", answer)
			}
			if at(answer, "usage/prompt_tokens_details/cached_tokens") != document["tokens"] {
				t.Errorf("of %v tokens read before: %v", document["tokens"], answer["usage"])
			}
		}()
	}
	all.Wait()
	r.idle()
}

func TestAConversationMayBeAboutADocument(t *testing.T) {
	r := start(t, nil)
	id, document := r.read(someText(random(t), 100))
	for _, messages := range [][]object{
		{{"role": "user", "content": question}},
		{{"role": "system", "content": "Be short."}, {"role": "user", "content": question}},
		{{"role": "user", "content": question}, {"role": "assistant", "content": fact}, {"role": "user", "content": question}},
	} {
		body := object{"model": "needle-f16", "document": id, "temperature": 0, "messages": messages}
		answer := r.post("/v1/chat/completions", body)
		if at(answer, "usage/prompt_tokens_details/cached_tokens") != document["tokens"] {
			t.Errorf("%v: the document is read again: %v", messages, answer["usage"])
		}
		if len(messages) == 1 && at(answer, "choices/0/message/content") != fact {
			t.Errorf("the answer is %v", answer)
		}
		if events, done := r.stream("/v1/chat/completions", body); !done || written(events) != at(answer, "choices/0/message/content") {
			t.Errorf("%v: the stream says %q, the whole %v", messages, written(events), answer)
		}
	}
	if status, _ := r.call("POST", "/v1/chat/completions", object{"model": "needle-f16", "document": id,
		"messages": []object{{"role": "assistant", "content": "hello"}}}); status != 400 {
		t.Errorf("a conversation that the assistant begins: status %d", status)
	}
}

func TestTheSameTextIsReadOnce(t *testing.T) {
	r := start(t, nil)
	text := someText(random(t), 200)
	var all sync.WaitGroup
	ids := make([]string, 4)
	for i := range ids {
		all.Add(1)
		go func() {
			defer all.Done()
			ids[i], _ = r.read(text)
		}()
	}
	all.Wait()
	again, document := r.read("\n" + text + "\n")
	for _, id := range ids {
		if id != again {
			t.Errorf("the ids are %q and %q", ids, again)
		}
	}
	if read := float64(r.service.metrics.promptTokens.Load()); document["new"] != false || read != document["tokens"] {
		t.Errorf("%g tokens were read for a document of %v", read, document)
	}
}

func TestReadingTellsItsProgress(t *testing.T) {
	r := start(t, nil)
	response, err := r.send(context.Background(), "POST", "/v1/documents?stream=true", someText(random(t), 500))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	events, done := eventsOf(t, response.Body)
	document := events[len(events)-1]
	if !done || document["object"] != "document" || len(events) < 3 {
		t.Fatalf("done %v, events %v", done, events)
	}
	before := 0.0
	for _, event := range events[:len(events)-1] {
		now := event["done"].(float64)
		if total := event["total"].(float64); now < before || now > total || (total > 0 && total != document["tokens"]) {
			t.Errorf("the document is %v, progress %v", document, events)
		}
		before = now
	}
}

func TestAReadingThatNobodyWaitsForEnds(t *testing.T) {
	r := start(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	r.begin(ctx, "/v1/documents?stream=true", someText(random(t), 2000))
	cancel()
	r.idle()
	if list := r.service.library.all(); len(list) > 0 {
		t.Errorf("there are %d documents", len(list))
	}
}

func TestATextWhoseReadingWasGivenUpIsReadAnew(t *testing.T) {
	r := start(t, nil)
	l, text := r.service.library, someText(random(t), 500)
	ctx, cancel := context.WithCancel(context.Background())
	var begun sync.Once
	_, _, err := l.read(ctx, "book", text, func(done, total int) {
		if total > 0 {
			begun.Do(cancel)
		}
	})
	if err == nil {
		t.Fatal("the reading was not given up")
	}
	d, isNew, err := l.read(context.Background(), "book", text, func(int, int) {})
	if err != nil || !isNew || d.Tokens == 0 {
		t.Fatalf("new %v, error %v", isNew, err)
	}
	if count := len(l.all()); count != 1 {
		t.Errorf("there are %d documents", count)
	}
}

func TestDocumentsComeBackAfterARestart(t *testing.T) {
	folder := t.TempDir()
	text := someText(random(t), 200)
	first := start(t, func(o *options) { o.documents = folder })
	id, document := first.read(text)
	before := first.ask(id)
	first.stop()

	second := start(t, func(o *options) { o.documents = folder })
	_, found := second.call("GET", "/v1/documents/"+id, nil)
	if found["saved"] != true || found["loaded"] != false || found["tokens"] != document["tokens"] || found["name"] != "book" {
		t.Errorf("found again is %v of %v", found, document)
	}
	again, known := second.read(text)
	if again != id || known["new"] != false {
		t.Errorf("the same text is %v", known)
	}
	after := second.ask(id)
	if at(after, "choices/0/message/content") != at(before, "choices/0/message/content") {
		t.Errorf("before %v, after %v", before, after)
	}
	if read := float64(second.service.metrics.promptTokens.Load()); read >= 100 {
		t.Errorf("%g tokens were read: the document was not loaded", read)
	}
}

func TestADamagedSessionIsReadAgainFromItsText(t *testing.T) {
	folder := t.TempDir()
	first := start(t, func(o *options) { o.documents = folder })
	id, _ := first.read(someText(random(t), 100))
	first.stop()
	file := sessionFile(first.folder(), id)
	if err := os.Truncate(file, 1000); err != nil {
		t.Fatal(err)
	}
	second := start(t, func(o *options) { o.documents = folder })
	if got := at(second.ask(id), "choices/0/message/content"); got != fact {
		t.Errorf("the answer is %v", got)
	}
	eventually(t, "it is saved again", func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 2000
	})
	eventually(t, "it may leave memory again", second.service.library.makeRoom)
}

func TestALoadedDocumentIsReadAsTheOptionsSay(t *testing.T) {
	folder := t.TempDir()
	first := start(t, func(o *options) { o.documents, o.sparseRead = folder, 100 })
	id, document := first.read(someText(random(t), 100))
	first.stop()
	for _, test := range []struct {
		policy string
		anew   bool
	}{{"", false}, {"full", true}, {"full", false}} { // as which it is saved then
		next := start(t, func(o *options) { o.documents, o.policy = folder, test.policy })
		next.ask(id)
		if read := float64(next.service.metrics.promptTokens.Load()); (read > document["tokens"].(float64)) != test.anew {
			t.Errorf("%+v: %g tokens were read for a document of %v", test, read, document["tokens"])
		}
		next.stop()
	}
}

func TestFilesOfAProcessThatWasKilledAreRemoved(t *testing.T) {
	folder := t.TempDir()
	first := start(t, func(o *options) { o.documents = folder })
	id, _ := first.read(someText(random(t), 50))
	first.stop()
	if err := os.Remove(factsFile(first.folder(), id)); err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(first.folder(), "doc-notes.txt")
	if err := os.WriteFile(mine, []byte("of the host's own"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := start(t, func(o *options) { o.documents = folder })
	if files := second.files(); len(files) != 1 || files[0] != filepath.Base(mine) {
		t.Errorf("the folder has %v", files)
	}
}

func TestADocumentThatIsLostIsAnErrorOfItsOwn(t *testing.T) {
	folder := t.TempDir()
	first := start(t, func(o *options) { o.documents = folder })
	text := someText(random(t), 30)
	id, _ := first.read(text)
	first.stop()
	if err := os.WriteFile(textFile(first.folder(), id), []byte("another text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(first.folder(), "nonsense.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := start(t, func(o *options) { o.documents = folder })
	status, answer := second.call("POST", "/v1/documents/"+id+"/ask", object{"question": question})
	if status != 500 || at(answer, "error/code") != "document_lost" {
		t.Errorf("status %d, %v", status, answer)
	}
	if status, _ := second.call("DELETE", "/v1/documents/"+id, nil); status != 200 {
		t.Errorf("it cannot be deleted: %d", status)
	}
	second.read(text) // and read anew
	if got := at(second.ask(id), "choices/0/message/content"); got != fact {
		t.Errorf("the answer is %v", got)
	}
}

func TestADeletedDocumentIsGone(t *testing.T) {
	r := start(t, nil)
	id, _ := r.read(someText(random(t), 50))
	if status, answer := r.call("DELETE", "/v1/documents/"+id, nil); status != 200 || answer["deleted"] != true {
		t.Errorf("status %d, %v", status, answer)
	}
	for _, method := range []string{"GET", "DELETE"} {
		if status, _ := r.call(method, "/v1/documents/"+id, nil); status != http.StatusNotFound {
			t.Errorf("%s: status %d", method, status)
		}
	}
	_, list := r.call("GET", "/v1/documents", nil)
	if data := list["data"].([]any); len(data) != 0 {
		t.Errorf("the list is %v", list)
	}
	r.stop()
	if files := r.files(); len(files) != 0 {
		t.Errorf("the folder has %v", files)
	}
}

func TestDocumentsLeaveMemoryWhenOthersNeedIt(t *testing.T) {
	r := start(t, func(o *options) { o.kvBudget = 40 << 20 })
	random := random(t)
	var ids []string
	for range 6 { // some 10 MB each
		id, _ := r.read(someText(random, 200))
		ids = append(ids, id)
	}
	r.service.library.work.Wait()
	held, loaded := r.service.library.held()
	if loaded == len(ids) || held > 20<<20 {
		t.Errorf("%d documents of %d bytes are in memory", loaded, held)
	}
	for _, at := range random.Perm(len(ids)) {
		r.ask(ids[at])
	}
	r.idle()
}

func TestADocumentLargerThanHalfTheBudgetStays(t *testing.T) {
	r := start(t, func(o *options) { o.kvBudget = 26 << 20 })
	id, document := r.read(someText(random(t), 330))
	r.service.library.work.Wait()
	e := r.service.engine
	if held, loaded := r.service.library.held(); loaded != 1 || held <= r.service.library.most {
		t.Fatalf("%d documents of %d bytes are in memory", loaded, held)
	}
	d, err := r.service.library.get(id)
	if err != nil {
		t.Fatal(err)
	}
	session, err := d.session.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if e.lacks(session, d.Tokens+100) {
		t.Error("a fork is to need the document's memory once more")
	}
	session.Close()
	var all sync.WaitGroup
	for range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			if got := at(r.ask(id), "choices/0/message/content"); got != fact {
				t.Errorf("the answer is %v", got)
			}
		}()
	}
	all.Wait()
	r.idle()
	if _, loaded := r.service.library.held(); loaded != 1 {
		t.Error("it left memory")
	}
	if read := float64(r.service.metrics.promptTokens.Load()); read > document["tokens"].(float64)+1000 {
		t.Errorf("%g tokens were read for a document of %v", read, document["tokens"])
	}
}

func TestADocumentStaysWhileItIsAsked(t *testing.T) {
	r := start(t, nil)
	id, _ := r.read(someText(random(t), 50))
	l := r.service.library
	l.work.Wait()
	d, err := l.get(id)
	if err != nil {
		t.Fatal(err)
	}
	done, err := l.use(context.Background(), d, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	if l.makeRoom() {
		t.Error("it left memory")
	}
	done()
	if !l.makeRoom() {
		t.Error("it stays when nobody asks it any more")
	}
}

func TestDocumentsStayInMemoryWhereThereIsRoom(t *testing.T) {
	r := start(t, nil)
	e := r.service.engine
	asked := 0
	e.makeRoom = func() bool { asked++; return false }
	busy, err := e.model.NewSession(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	slow := &waveinfer.SamplingParams{LogitsCallback: func([]float32) error { time.Sleep(4 * lookAfter); return nil }}
	holding, err := busy.Submit(&waveinfer.TaskParams{Text: fact, MaxTokens: 4, Sampling: slow})
	if err != nil {
		t.Fatal(err)
	}
	defer holding.Close()
	time.Sleep(lookAfter) // the engine is within its step
	session, err := e.model.NewSession(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	task, err := e.start(context.Background(), session, &waveinfer.TaskParams{Tokens: []waveinfer.Token{1, 2, 3}, MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	task.Close()
	if asked > 0 {
		t.Errorf("documents were to make room %d times", asked)
	}
}

func TestADocumentThatCouldNotBeSavedIsSavedAtTheEnd(t *testing.T) {
	r := start(t, nil)
	putBack := r.takeFolderAway()
	id, _ := r.read(someText(random(t), 50))
	r.service.library.work.Wait()
	if _, document := r.call("GET", "/v1/documents/"+id, nil); document["saved"] != false {
		t.Errorf("the document is %v", document)
	}
	if r.service.library.makeRoom() {
		t.Error("it left memory")
	}
	if got := at(r.ask(id), "choices/0/message/content"); got != fact {
		t.Errorf("the answer is %v", got)
	}
	putBack()
	r.stop()
	if files := r.files(); len(files) != 3 {
		t.Errorf("the folder has %v", files)
	}
}

func TestWhatCannotBeSavedAtTheEndIsSaid(t *testing.T) {
	r := start(t, nil)
	r.takeFolderAway()
	r.read(fact)
	r.stopped = true
	if err := r.service.shutdown(r.server.Config); err == nil {
		t.Error("the shutdown says nothing")
	}
}

// A document that is deleted while it is saved leaves nothing behind.
func TestADocumentMayBeDeletedAtAnyTime(t *testing.T) {
	r := start(t, nil)
	random := random(t)
	for range 10 {
		id, _ := r.read(someText(random, 60))
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
		go r.askInVain(id)
		r.call("DELETE", "/v1/documents/"+id, nil)
	}
	r.idle()
	r.stop()
	if files := r.files(); len(files) != 0 {
		t.Errorf("the folder has %v", files)
	}
}

// askInVain asks a document that may be gone.
func (r *running) askInVain(id string) {
	response, err := r.send(context.Background(), "POST", "/v1/documents/"+id+"/ask", object{"question": question})
	if err == nil {
		response.Body.Close()
	}
}
