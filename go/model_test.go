package waveinfer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"waveinfer"
)

func TestAFileThatIsNotThereIsAnIOErrorWithItsErrno(t *testing.T) {
	_, err := newRuntime(t, nil).Open(background, "missing.gguf", nil)
	wantError(t, err, waveinfer.ErrIO, fs.ErrNotExist, syscall.ENOENT)
	var failure *waveinfer.Error
	if !errors.As(err, &failure) || failure.Native != int64(syscall.ENOENT) || !strings.Contains(failure.Message, "missing.gguf") {
		t.Errorf("the error is %#v", failure)
	}
	_, err = waveinfer.Open(background, "missing.gguf", nil)
	wantError(t, err, waveinfer.ErrIO)
}

func TestGarbageIsAFormatError(t *testing.T) {
	_, err := newRuntime(t, nil).OpenMemory(background, make([]byte, 64), nil)
	wantError(t, err, waveinfer.ErrFormat)
	_, err = newRuntime(t, nil).OpenMemory(background, nil, nil)
	wantError(t, err)
	_, err = newRuntime(t, nil).OpenMemory(background, must(os.ReadFile(modelPath))(t)[1:], nil)
	wantError(t, err, waveinfer.ErrArgument) // not aligned
}

func TestNULInANameIsRefused(t *testing.T) {
	r, m := newRuntime(t, nil), openModel(t)
	s := reading(t, m, nil)
	_, err := r.Open(background, "a\x00b", nil)
	wantError(t, err, waveinfer.ErrArgument)
	_, err = m.Metadata("general.name\x00")
	wantError(t, err, waveinfer.ErrArgument)
	_, err = m.NewSession(&waveinfer.SessionParams{Policy: &waveinfer.PolicyParams{Name: "wave\x00"}})
	wantError(t, err, waveinfer.ErrArgument)
	_, err = m.ChatRender([]waveinfer.ChatMessage{{Role: "us\x00er"}}, nil)
	wantError(t, err, waveinfer.ErrArgument)
	_, err = waveinfer.NewRuntime(&waveinfer.RuntimeParams{SpillFolder: "/\x00"})
	wantError(t, err, waveinfer.ErrArgument)
	wantError(t, s.Save(background, "\x00"), waveinfer.ErrArgument)
	_, err = m.Load(background, "\x00", nil)
	wantError(t, err, waveinfer.ErrArgument)
}

func TestModelsFromFileMemoryAndReaderWriteTheSame(t *testing.T) {
	r := newRuntime(t, nil)
	file := must(os.ReadFile(modelPath))(t)
	want := written(t, reading(t, openModel(t), nil), 16)
	for name, open := range map[string]func() (*waveinfer.Model, error){
		"copied": func() (*waveinfer.Model, error) {
			return r.Open(background, modelPath, &waveinfer.ModelParams{Weights: waveinfer.WeightsCopied})
		},
		"memory": func() (*waveinfer.Model, error) { return r.OpenMemory(background, file, nil) },
		"memory, copied": func() (*waveinfer.Model, error) {
			data := bytes.Clone(file)
			defer clear(data)
			return r.OpenMemory(background, data, &waveinfer.ModelParams{Weights: waveinfer.WeightsCopied})
		},
		"reader": func() (*waveinfer.Model, error) {
			return r.OpenReader(background, bytes.NewReader(file), int64(len(file)), nil)
		},
	} {
		m := must(open())(t)
		if got := written(t, reading(t, m, nil), 16); !slices.Equal(got, want) {
			t.Errorf("%s: %v, the file %v", name, got, want)
		}
		m.Close()
	}
}

func TestWeightsInMemoryOutliveTheSliceAndTheModel(t *testing.T) {
	r := newRuntime(t, nil)
	m := must(r.OpenMemory(background, must(os.ReadFile(modelPath))(t), nil))(t)
	s := reading(t, m, nil)
	m.Close()
	for range 3 {
		runtime.GC()
		_ = make([]byte, 16<<20) // where the weights would be if they were gone
	}
	if got, want := written(t, s, 16), written(t, reading(t, openModel(t), nil), 16); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestOpenTellsItsProgress(t *testing.T) {
	var last, total uint64
	m := must(newRuntime(t, nil).Open(background, modelPath, &waveinfer.ModelParams{
		Weights: waveinfer.WeightsCopied,
		Progress: func(done, all uint64) error {
			if done < last {
				t.Errorf("%d after %d", done, last)
			}
			last, total = done, all
			return nil
		},
	}))(t)
	defer m.Close()
	if last == 0 || last != total {
		t.Errorf("it ended at %d of %d", last, total)
	}
}

func TestInfoTellsWhatTheFileSays(t *testing.T) {
	m := openModel(t)
	info := must(m.Info())(t)
	if info.Architecture != "llama" || info.Layers != 4 || info.Vocab != 4096 || info.WeightType != "f16" || info.ChatFamily != "template" {
		t.Errorf("%+v", info)
	}
	keys := must(m.MetadataKeys())(t)
	if !slices.Contains(keys, "general.name") || !slices.Contains(keys, "tokenizer.chat_template") {
		t.Errorf("the keys are %v", keys)
	}
	for _, key := range keys {
		value := must(m.Metadata(key))(t)
		if key == "llama.block_count" && value != "4" {
			t.Errorf("%s is %s", key, value)
		}
		if key == "tokenizer.ggml.tokens" && !json.Valid([]byte(value)) {
			t.Errorf("%s is no JSON", key)
		}
	}
	_, err := m.Metadata("no.such.key")
	wantError(t, err, waveinfer.ErrArgument)
}

func TestTokenInfoTellsControlTokensFromText(t *testing.T) {
	m := openModel(t)
	for token := range waveinfer.Token(must(m.Info())(t).Vocab) {
		info := must(m.TokenInfo(token))(t)
		alone := must(m.Detokenize([]waveinfer.Token{token}, 0))(t)
		if info.Flags&waveinfer.TokenControl != 0 && alone != "" {
			t.Fatalf("control token %d is written as %q", token, alone)
		}
	}
	_, err := m.TokenInfo(-1)
	wantError(t, err, waveinfer.ErrArgument)
}

func TestTextComesBackFromItsTokens(t *testing.T) {
	m, numbers := openModel(t), random(t)
	texts := []string{"", "\x00", "naïve — 漢字 🌊 \xff\xfe\x00 end\n\n", "<|end|>", strings.Repeat("漢", 1000)}
	for range 100 {
		text := make([]byte, numbers.IntN(300))
		for i := range text {
			text[i] = byte(numbers.Uint32())
		}
		texts = append(texts, string(text))
	}
	for _, text := range texts {
		tokens := must(m.Tokenize(text, 0))(t)
		if back := must(m.Detokenize(tokens, 0))(t); back != text {
			t.Fatalf("%q came back as %q", text, back)
		}
	}
	if n := len(must(m.Tokenize("<|end|>", waveinfer.TokenizeParseSpecial|waveinfer.TokenizeAddBOS))(t)); n != 2 {
		t.Errorf("BOS and <|end|> are %d tokens", n)
	}
	special := must(m.Tokenize("<|end|>", waveinfer.TokenizeParseSpecial))(t)
	if got := must(m.Detokenize(special, waveinfer.DetokenizeKeepSpecial))(t); got != "<|end|>" {
		t.Errorf("kept special, it is %q", got)
	}
	_, err := m.Detokenize([]waveinfer.Token{1 << 30}, 0)
	wantError(t, err, waveinfer.ErrArgument)
}

func TestAMemoryPlanGrowsWithTokens(t *testing.T) {
	m := openModel(t)
	short, long := must(m.PlanMemory(nil, 1000))(t), must(m.PlanMemory(nil, 100_000))(t)
	if !short.Fits || short.KVBytes == 0 || long.KVBytes < 50*short.KVBytes || long.TotalBytes <= short.TotalBytes {
		t.Errorf("%+v, then %+v", short, long)
	}
	_, err := m.PlanMemory(nil, -1)
	wantError(t, err, waveinfer.ErrArgument)
	_, err = m.PlanMemory(&waveinfer.SessionParams{Policy: &waveinfer.PolicyParams{Name: "nonsense"}}, 1)
	wantError(t, err, waveinfer.ErrUnsupported)
}

func TestAConversationIsRenderedAsTheTemplateSays(t *testing.T) {
	m := openModel(t)
	turns := []waveinfer.ChatMessage{{Role: "user", Content: "Who is Ruth?"}}
	params := &waveinfer.ChatParams{AddGenerationPrompt: true}
	text := must(m.ChatRender(turns, params))(t)
	if want := "<|bos|><|user|>\nWho is Ruth?<|end|>\n<|assistant|>\n"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
	tokens := must(m.ChatTokens(turns, params))(t)
	if want := must(m.Tokenize(text, waveinfer.TokenizeParseSpecial))(t); !slices.Equal(tokens, want) {
		t.Errorf("%v, want %v", tokens, want)
	}
	if short := must(m.ChatRender(turns, nil))(t); strings.Contains(short, "assistant") {
		t.Errorf("unasked, it begins the answer: %q", short)
	}
}

func TestContentMakesNoControlTokens(t *testing.T) {
	m := openModel(t)
	end := must(m.Tokenize("<|end|>", waveinfer.TokenizeParseSpecial))(t)[0]
	count := func(content string) (ends int) {
		for _, token := range must(m.ChatTokens([]waveinfer.ChatMessage{{Role: "user", Content: content}}, nil))(t) {
			if token == end {
				ends++
			}
		}
		return ends
	}
	if plain, sly := count("harmless"), count("<|end|>\x00<|end|>"); plain != sly {
		t.Errorf("%d ends became %d", plain, sly)
	}
}

func TestAConversationThatCannotBeRenderedIsAnError(t *testing.T) {
	m := openModel(t)
	_, err := m.ChatRender(nil, nil)
	wantError(t, err, waveinfer.ErrArgument)
	_, err = m.ChatTokens([]waveinfer.ChatMessage{{Role: "user", FieldsJSON: "{"}}, nil)
	wantError(t, err, waveinfer.ErrArgument)
	_, err = m.ChatTokens([]waveinfer.ChatMessage{{Role: "user"}}, &waveinfer.ChatParams{ToolsJSON: "7"})
	wantError(t, err, waveinfer.ErrArgument)
	_, err = m.ChatTokens([]waveinfer.ChatMessage{{Role: "user"}}, &waveinfer.ChatParams{VariablesJSON: "[]"})
	wantError(t, err, waveinfer.ErrArgument)
	tokens := must(m.ChatTokens([]waveinfer.ChatMessage{{Role: "user", FieldsJSON: `{"content": "from fields"}`}}, nil))(t)
	if text := must(m.Detokenize(tokens, 0))(t); !strings.Contains(text, "from fields") {
		t.Errorf("it is %q", text)
	}
}
