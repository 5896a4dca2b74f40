package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// folder is where one model's documents are saved, and nobody else's: what another service did to its files would be
// the loss of documents.
type folder struct {
	path string
	lock *os.File
}

// openFolder makes a folder of a model's own within the one for all, and takes it until it is closed.
func openFolder(all, model string) (*folder, error) {
	path := filepath.Join(all, "model-"+model)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// The system takes the lock back when the process ends, however it ends.
	if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is in use by another service with the same model; --documents names another folder", path)
		}
		return nil, fmt.Errorf("%s cannot be locked: %w", lock.Name(), err)
	}
	return &folder{path: path, lock: lock}, nil
}

func (f *folder) close() { f.lock.Close() }

// So many blocks of a file tell it from others: all of it would be tens of gigabytes at every start.
const (
	sampleBlocks = 256
	sampleBytes  = 16 << 10
)

// identityOf names a model by what is in its files, wherever they are and whatever they are called.
func identityOf(model string) (string, error) {
	files, err := filesOf(model)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, file := range files {
		if err := sample(hash, file); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(hash.Sum(nil)[:8]), nil
}

var split = regexp.MustCompile(`-\d{5}(-of-\d{5}\.gguf)$`)

// filesOf are the files that make a model what it is: of a folder and of a split set all that have weights.
func filesOf(model string) ([]string, error) {
	info, err := os.Stat(model)
	if err != nil {
		return nil, err
	}
	parts := split.FindStringSubmatchIndex(model)
	within, isPart := model, func(name string) bool {
		return name == "config.json" || name == "tokenizer.json" || strings.HasSuffix(name, ".safetensors")
	}
	switch {
	case info.IsDir():
	case parts == nil:
		return []string{model}, nil
	default:
		within = filepath.Dir(model)
		like := regexp.MustCompile(`^` + regexp.QuoteMeta(filepath.Base(model[:parts[0]])) + `-\d{5}` + regexp.QuoteMeta(model[parts[2]:]) + `$`)
		isPart = like.MatchString
	}
	entries, err := os.ReadDir(within)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries { // in the order of their names
		if isPart(entry.Name()) {
			files = append(files, filepath.Join(within, entry.Name()))
		}
	}
	return files, nil
}

// sample writes a file's length and blocks from its beginning to its end.
func sample(to io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintln(to, info.Size())
	if info.Size() <= sampleBlocks*sampleBytes {
		_, err := io.Copy(to, file)
		return err
	}
	for i := range int64(sampleBlocks) {
		at := (info.Size() - sampleBytes) / (sampleBlocks - 1) * i
		if _, err := io.Copy(to, io.NewSectionReader(file, at, sampleBytes)); err != nil {
			return err
		}
	}
	return nil
}
