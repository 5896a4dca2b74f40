// Errors shows what goes wrong, and how it looks: a code, a message that names what and where, and everything
// as it was.
//
//	errors MODEL
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"waveinfer"
)

const usage = `usage: errors MODEL
Example: errors m.gguf
`

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "-h" || os.Args[1] == "--help") {
		fmt.Print(usage)
		return
	}
	if len(os.Args) != 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(1)
	}
	if err := provoke(context.Background(), os.Args[1]); err != nil {
		show("errors", err)
		os.Exit(1)
	}
}

func show(what string, err error) {
	var failure *waveinfer.Error
	if errors.As(err, &failure) {
		fmt.Printf("%s\n  %v: %s\n", what, failure.Code, failure.Message)
	} else {
		fmt.Printf("%s\n  OK\n", what)
	}
}

func provoke(ctx context.Context, path string) error {
	// A million bytes for keys and values of all sessions.
	small, err := waveinfer.NewRuntime(&waveinfer.RuntimeParams{KVBudgetBytes: 1_000_000})
	if err != nil {
		return err
	}
	defer small.Close()
	model, err := small.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		return err
	}
	defer session.Close()

	_, err = small.Open(ctx, "missing.gguf", nil)
	show("a file that is not there", err)
	_, err = small.OpenMemory(ctx, make([]byte, 64), nil)
	show("a file that is no model", err)
	err = session.Prefill(ctx, []waveinfer.Token{1, 2, 1 << 30}, nil)
	show("a token that is none", err)
	_, err = session.Decode(ctx)
	show("an answer to nothing", err)

	tokens := make([]waveinfer.Token, 20_000)
	for i := range tokens {
		tokens[i] = waveinfer.Token(100 + i%1000)
	}
	show("a prompt beyond the budget", session.Prefill(ctx, tokens, nil))

	over, cancel := context.WithCancel(ctx)
	cancel()
	show("a call that was cancelled", session.Prefill(over, tokens[:200], nil))
	show("and the session is as it was", session.Prefill(ctx, tokens[:200], nil))
	return nil
}
