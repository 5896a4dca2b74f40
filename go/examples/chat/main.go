// Chat is a conversation with a model: each line of standard input is a turn, the answer is streamed.
//
//	chat MODEL
//
// Before each answer the whole conversation is rendered in the model's own chat template; what the session
// has of it already is kept, the rest is read.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"waveinfer"
)

const mostTokens = 256

const usage = `usage: chat MODEL
Example: chat m.gguf
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
	if err := chat(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "chat:", err)
		os.Exit(1)
	}
}

func chat(ctx context.Context, path string) error {
	model, err := waveinfer.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		return err
	}
	defer session.Close()

	var turns []waveinfer.ChatMessage
	input := bufio.NewReader(os.Stdin)
	for {
		line, _ := input.ReadString('\n')
		if line == "" {
			return nil
		}
		turns = append(turns, waveinfer.ChatMessage{Role: "user", Content: strings.TrimSuffix(line, "\n")})
		if err := readConversation(ctx, model, session, turns); err != nil {
			return err
		}
		said, err := answer(ctx, session)
		if err != nil {
			return err
		}
		turns = append(turns, waveinfer.ChatMessage{Role: "assistant", Content: said})
	}
}

// readConversation brings the session to where the assistant's next answer begins.
func readConversation(ctx context.Context, model *waveinfer.Model, session *waveinfer.Session, turns []waveinfer.ChatMessage) error {
	wanted, err := model.ChatTokens(turns, &waveinfer.ChatParams{AddGenerationPrompt: true})
	if err != nil {
		return err
	}
	had, err := session.Tokens()
	if err != nil {
		return err
	}
	same := 0
	for same < len(had) && same < len(wanted) && had[same] == wanted[same] {
		same++
	}
	if err := session.Truncate(same); err != nil {
		return err
	}
	return session.Prefill(ctx, wanted[same:], nil)
}

func answer(ctx context.Context, session *waveinfer.Session) (string, error) {
	var said strings.Builder
	tokens := 0
	for event, err := range session.Events(ctx) {
		if err != nil {
			return "", err
		}
		fmt.Print(event.Text)
		said.WriteString(event.Text)
		if tokens++; tokens == mostTokens {
			break
		}
	}
	fmt.Println()
	return said.String(), nil
}
