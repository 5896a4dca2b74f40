package waveinfer_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"

	"waveinfer"
)

// A question is rendered in the model's own chat template, read, and answered token by token.
func Example() {
	ctx := context.Background()
	model, err := waveinfer.Open(ctx, "../samples/model/needle-f16.gguf", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	prompt, err := model.ChatTokens([]waveinfer.ChatMessage{{
		Role:    "user",
		Content: "The password of Boaz the potter is copper meadow.\n\nWhat is the password of Boaz the potter?",
	}}, &waveinfer.ChatParams{AddGenerationPrompt: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := session.Prefill(ctx, prompt, nil); err != nil {
		log.Fatal(err)
	}
	for event, err := range session.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(event.Text)
	}
	// Output: The password of Boaz the potter is copper meadow.
}

// Codes are errors, and what is behind a failure is found as well.
func ExampleError() {
	_, err := waveinfer.Open(context.Background(), "missing.gguf", nil)
	fmt.Println(errors.Is(err, waveinfer.ErrIO), errors.Is(err, fs.ErrNotExist))
	var failure *waveinfer.Error
	if errors.As(err, &failure) {
		fmt.Println(failure.Native, failure.Message)
	}
	// Output:
	// true true
	// 2 cannot open missing.gguf: No such file or directory
}

// A document is read once; forks of its session go on from there, each on its own.
func ExampleSession_Fork() {
	ctx := context.Background()
	model, err := waveinfer.Open(ctx, "../samples/model/needle-f16.gguf", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	document, err := model.NewSession(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer document.Close()
	if err := document.AppendText(ctx, "In the beginning", waveinfer.TokenizeAddBOS, nil); err != nil {
		log.Fatal(err)
	}
	for _, next := range []string{" was the Word", " God created"} {
		fork, err := document.Fork()
		if err != nil {
			log.Fatal(err)
		}
		defer fork.Close()
		if err := fork.AppendText(ctx, next, 0, nil); err != nil {
			log.Fatal(err)
		}
		tokens, err := fork.Tokens()
		if err != nil {
			log.Fatal(err)
		}
		text, err := model.Detokenize(tokens, 0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(text)
	}
	// Output:
	// In the beginning was the Word
	// In the beginning God created
}

// The runtime works on tasks by itself; their events come when they are ready.
func ExampleSession_Submit() {
	ctx := context.Background()
	model, err := waveinfer.Open(ctx, "../samples/model/needle-f16.gguf", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	task, err := session.Submit(&waveinfer.TaskParams{Text: "In the beginning", MaxTokens: 4})
	if err != nil {
		log.Fatal(err)
	}
	defer task.Close()
	events := 0
	for event, err := range task.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if event.Kind == waveinfer.EventToken {
			events++
		}
	}
	fmt.Println(events, "tokens")
	// Output: 4 tokens
}

// A grammar, or any other rule, decides which tokens may come next.
func ExampleSamplingParams() {
	ctx := context.Background()
	model, err := waveinfer.Open(ctx, "../samples/model/needle-f16.gguf", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	digits := map[waveinfer.Token]bool{}
	for _, digit := range "0123456789" {
		tokens, err := model.Tokenize(string(digit), 0)
		if err != nil {
			log.Fatal(err)
		}
		digits[tokens[0]] = true
	}
	session, err := model.NewSession(&waveinfer.SessionParams{Sampling: &waveinfer.SamplingParams{
		LogitsCallback: func(logits []float32) error {
			for token := range logits {
				if !digits[waveinfer.Token(token)] {
					logits[token] -= 1e9
				}
			}
			return nil
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	if err := session.AppendText(ctx, "The number of the tribes is", waveinfer.TokenizeAddBOS, nil); err != nil {
		log.Fatal(err)
	}
	event, err := session.Decode(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(event.Text), event.Text >= "0" && event.Text <= "9")
	// Output: 1 true
}
