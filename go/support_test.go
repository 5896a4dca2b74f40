package waveinfer_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"waveinfer"
)

const modelPath = "../samples/model/needle-f16.gguf"

const sentence = "In the beginning God created the heaven and the earth. And the earth was without form, and void; "

var background = context.Background()

// must fails the test for an error and returns the value.
func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError fails the test unless err is all of these and an *Error with a message.
func wantError(t testing.TB, err error, targets ...error) {
	t.Helper()
	var failure *waveinfer.Error
	if !errors.As(err, &failure) {
		t.Fatalf("the error is %v, want an *Error", err)
	}
	if failure.Message == "" {
		t.Error("the error has no message")
	}
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("the error is %v, want %v", err, target)
		}
	}
}

func newRuntime(t testing.TB, params *waveinfer.RuntimeParams) *waveinfer.Runtime {
	t.Helper()
	r := must(waveinfer.NewRuntime(params))(t)
	t.Cleanup(func() { r.Close() })
	return r
}

func openModel(t testing.TB) *waveinfer.Model {
	t.Helper()
	m := must(newRuntime(t, nil).Open(background, modelPath, nil))(t)
	t.Cleanup(func() { m.Close() })
	return m
}

func newSession(t testing.TB, m *waveinfer.Model, params *waveinfer.SessionParams) *waveinfer.Session {
	t.Helper()
	s := must(m.NewSession(params))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

// reading is a session that has read a few words.
func reading(t testing.TB, m *waveinfer.Model, params *waveinfer.SessionParams) *waveinfer.Session {
	t.Helper()
	s := newSession(t, m, params)
	succeed(t, s.AppendText(background, sentence, waveinfer.TokenizeAddBOS, nil))
	return s
}

// written is what a session writes next, at most so many tokens.
func written(t testing.TB, s *waveinfer.Session, most int) []waveinfer.Token {
	t.Helper()
	var tokens []waveinfer.Token
	for event, err := range s.Events(background) {
		succeed(t, err)
		tokens = append(tokens, event.Token)
		if len(tokens) == most {
			break
		}
	}
	return tokens
}

// random returns random numbers, whose seed a failed test prints.
func random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("WI_TEST_SEED"); given != "" {
		seed = must(strconv.ParseUint(given, 10, 64))(t)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("WI_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// residentBytes is the memory that this process has now.
func residentBytes(t testing.TB) int {
	t.Helper()
	text := must(os.ReadFile("/proc/self/statm"))(t)
	pages := must(strconv.Atoi(strings.Fields(string(bytes.TrimSpace(text)))[1]))(t)
	return pages * os.Getpagesize()
}

// eventually waits until a condition holds, for some seconds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for range 1000 {
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: not after ten seconds", what)
}
