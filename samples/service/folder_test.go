package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// anotherModel is a file of a model like the sample one, and not the same.
func anotherModel(t *testing.T) string {
	t.Helper()
	model, err := os.ReadFile(modelPath)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "another.gguf")
	for i := len(model) - 50000; i < len(model); i++ { // of its last weights
		model[i] &= 0x80
	}
	if err := os.WriteFile(path, model, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestASecondServiceLeavesTheDocumentsOfTheFirstAlone(t *testing.T) {
	folder := t.TempDir()
	first := start(t, func(o *options) { o.documents = folder })
	saving := []string{textFile(first.folder(), documentID("a text")), filepath.Join(first.folder(), temporary+"1")}
	for _, file := range saving { // as they are while the first is at it
		if err := os.WriteFile(file, []byte("a text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o, err := parseOptions([]string{"--model", modelPath, "--documents", folder}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newService(context.Background(), o); err == nil || !strings.Contains(err.Error(), "in use by another service") {
		t.Errorf("the second says %v", err)
	}
	for _, file := range saving {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
	first.stop()
	start(t, func(o *options) { o.documents = folder }) // when it is free
}

func TestTheAddressIsTakenBeforeDocumentsAreTouched(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	folder := filepath.Join(t.TempDir(), "documents")
	o, err := parseOptions([]string{"--model", modelPath, "--documents", folder, "--listen", taken.Addr().String()}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := run(o); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the documents were opened")
	}
}

func TestModelsThatShareAFolderKeepTheirDocumentsApart(t *testing.T) {
	folder, text := t.TempDir(), someText(random(t), 100)
	first := start(t, func(o *options) { o.documents = folder })
	second := start(t, func(o *options) { o.documents, o.model, o.name = folder, anotherModel(t), "another" })
	id, document := first.read(text)
	if _, known := second.read(text); known["new"] != true {
		t.Errorf("to the other model the text is %v", known)
	}
	first.stop()
	second.stop()
	again := start(t, func(o *options) { o.documents = folder })
	again.ask(id)
	if read := float64(again.service.metrics.promptTokens.Load()); read >= document["tokens"].(float64) {
		t.Errorf("%g tokens were read: the session is the other model's", read)
	}
}

func TestDocumentsOfEarlierServicesAreFoundAndStayAsTheyAre(t *testing.T) {
	folder := t.TempDir()
	first := start(t, func(o *options) { o.documents = folder })
	id, document := first.read(someText(random(t), 100))
	first.stop()
	for _, name := range first.files() {
		if err := os.Rename(filepath.Join(first.folder(), name), filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(sessionFile(folder, id))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		model string
		anew  bool
	}{{anotherModel(t), true}, {modelPath, false}} {
		next := start(t, func(o *options) { o.documents, o.model = folder, test.model })
		next.ask(id)
		if read := float64(next.service.metrics.promptTokens.Load()); (read > document["tokens"].(float64)) != test.anew {
			t.Errorf("%+v: %g tokens were read for a document of %v", test, read, document["tokens"])
		}
		next.stop()
		if after, err := os.ReadFile(sessionFile(folder, id)); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%+v: the session was written over, or %v", test, err)
		}
		if saved := len(next.files()) == 3; saved != test.anew {
			t.Errorf("%+v: in its own folder are %q", test, next.files())
		}
	}
	last := start(t, func(o *options) { o.documents = folder })
	if status, _ := last.call("DELETE", "/v1/documents/"+id, nil); status != 200 {
		t.Errorf("deleting it: status %d", status)
	}
	last.stop()
	if _, found := start(t, func(o *options) { o.documents = folder }).call("GET", "/v1/documents/"+id, nil); found["id"] == id {
		t.Error("what was deleted has come back")
	}
}

func TestAModelIsKnownByWhatIsInItsFiles(t *testing.T) {
	identity := func(path string) string {
		t.Helper()
		known, err := identityOf(path)
		if err != nil {
			t.Fatal(err)
		}
		return known
	}
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	model, err := os.ReadFile(modelPath)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copied.gguf")
	write(copied, string(model))
	if identity(copied) != identity(modelPath) || identity(anotherModel(t)) == identity(modelPath) {
		t.Error("a copy is another model, or another model the same")
	}
	for _, names := range [][3]string{{"config.json", "model.safetensors", ""}, {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "m-00001-of-00002.gguf"}} {
		folder := t.TempDir()
		write(filepath.Join(folder, names[0]), "first")
		write(filepath.Join(folder, names[1]), "second")
		before := identity(filepath.Join(folder, names[2]))
		write(filepath.Join(folder, "notes.txt"), "of nobody")
		if identity(filepath.Join(folder, names[2])) != before {
			t.Errorf("%s: a file beside it makes it another model", names[0])
		}
		write(filepath.Join(folder, names[1]), "changed")
		if identity(filepath.Join(folder, names[2])) == before {
			t.Errorf("%s: other weights are the same model", names[0])
		}
	}
}
