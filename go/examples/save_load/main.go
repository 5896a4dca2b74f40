// Save_load keeps a session in a file: what was read need not be read again, not even by another process.
//
//	save_load MODEL TEXT FILE
//
// It reads the text, saves the session, goes on; loads it, goes on from there: the same words.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"waveinfer"
)

const tokens = 32

const usage = `usage: save_load MODEL TEXT FILE
Example: save_load m.gguf 'Once upon a time' story.session
`

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "-h" || os.Args[1] == "--help") {
		fmt.Print(usage)
		return
	}
	if len(os.Args) != 4 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(1)
	}
	if err := saveAndLoad(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "save_load:", err)
		os.Exit(1)
	}
}

func saveAndLoad(ctx context.Context, path, text, file string) error {
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
	if err := session.AppendText(ctx, text, waveinfer.TokenizeAddBOS, nil); err != nil {
		return err
	}
	if err := session.Save(ctx, file); err != nil {
		return err
	}
	before, err := goOn(ctx, session)
	if err != nil {
		return err
	}

	loaded, err := model.Load(ctx, file, nil)
	if err != nil {
		return err
	}
	defer loaded.Close()
	read, err := loaded.Tokens()
	if err != nil {
		return err
	}
	fmt.Printf("loaded: %d tokens\n", len(read))
	after, err := goOn(ctx, loaded)
	if err != nil {
		return err
	}
	same := "no"
	if slices.Equal(before, after) {
		same = "yes"
	}
	fmt.Printf("the same tokens: %s\n", same)
	return nil
}

// goOn prints what comes next, and notes its tokens.
func goOn(ctx context.Context, session *waveinfer.Session) ([]waveinfer.Token, error) {
	var next []waveinfer.Token
	for range tokens {
		event, err := session.Decode(ctx)
		if err != nil {
			return nil, err
		}
		fmt.Print(event.Text)
		next = append(next, event.Token)
	}
	fmt.Println()
	return next, nil
}
