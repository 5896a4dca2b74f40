// Long_document reads a long document once, then answers several questions about it at the same time, each
// from a fork.
//
//	long_document MODEL DOCUMENT QUESTION...
//
// Ctrl-C ends reading and answering. Progress and statistics go to standard error.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"waveinfer"
)

const mostTokens = 128

const usage = `usage: long_document MODEL DOCUMENT QUESTION...
Example: long_document m.gguf book.txt 'Who wrote the letter?'
`

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "-h" || os.Args[1] == "--help") {
		fmt.Print(usage)
		return
	}
	if len(os.Args) < 4 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := askAll(ctx, os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "\nlong_document:", err)
		os.Exit(1)
	}
}

func askAll(ctx context.Context, path, file string, questions []string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	model, err := waveinfer.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	document, err := model.NewSession(nil)
	if err != nil {
		return err
	}
	defer document.Close()

	// What all these conversations begin with is the document: it is read once.
	opening, err := userTurn(model, string(text)+"\n\n")
	if err != nil {
		return err
	}
	shared := len(opening)
	asked := make([][]waveinfer.Token, len(questions))
	for i, question := range questions {
		if asked[i], err = userTurn(model, string(text)+"\n\n"+question); err != nil {
			return err
		}
		shared = min(shared, commonPrefix(opening, asked[i]))
	}
	err = document.Prefill(ctx, opening[:shared], &waveinfer.PrefillParams{
		Progress: func(done, total uint64) error {
			fmt.Fprintf(os.Stderr, "\rreading: %3.0f %%", 100*float64(done)/float64(total))
			return nil
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr)

	tasks := make([]*waveinfer.Task, len(questions))
	for i := range questions {
		if tasks[i], err = ask(document, asked[i][shared:]); err != nil {
			return err
		}
		defer tasks[i].Close()
	}
	for i, question := range questions {
		fmt.Printf("%s\n  ", question)
		for event, err := range tasks[i].Events(ctx) {
			if err != nil {
				return err
			}
			fmt.Print(event.Text)
		}
		fmt.Println()
	}

	stats, err := document.Stats()
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d tokens read in %.1f s, %d segments, %.1f MB of KV cache, %.1f MB of it index\n",
		stats.Tokens, stats.PrefillTime.Seconds(), stats.Segments, float64(stats.KVBytes)/1e6, float64(stats.IndexBytes)/1e6)
	return nil
}

// userTurn is a user's turn as the model's chat template has it, up to where the answer begins.
func userTurn(model *waveinfer.Model, text string) ([]waveinfer.Token, error) {
	return model.ChatTokens([]waveinfer.ChatMessage{{Role: "user", Content: text}},
		&waveinfer.ChatParams{AddGenerationPrompt: true})
}

func commonPrefix(a, b []waveinfer.Token) int {
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	return same
}

// ask has a fork of the document read the rest of a question and answer it.
func ask(document *waveinfer.Session, rest []waveinfer.Token) (*waveinfer.Task, error) {
	fork, err := document.Fork()
	if err != nil {
		return nil, err
	}
	defer fork.Close() // the task keeps it
	return fork.Submit(&waveinfer.TaskParams{Tokens: rest, MaxTokens: mostTokens})
}
