package waveinfer

// #include "callback.h"
import "C"

import (
	"context"
	"io"
	"runtime"
	"unsafe"
)

// Precision says how prefill multiplies by weights, keys and values narrower than float32. Decoding is always
// in float32, except at PrecisionInt8.
type Precision int32

// The precisions.
const (
	PrecisionFast Precision = C.WI_PRECISION_FAST // bf16 with float32 sums where that is faster
	PrecisionF32  Precision = C.WI_PRECISION_F32  // everything in float32
	PrecisionHigh Precision = C.WI_PRECISION_HIGH // 16 significant bits where there is AMX, else PrecisionF32
	// By quantised weights, decoding as well as prefill multiplies in integers of 8 bits.
	PrecisionInt8 Precision = C.WI_PRECISION_INT8
)

// Weights says where weights lie while a model lives.
type Weights int32

// The places of weights.
const (
	// In the file, which must not change so long: one that is cut short ends the process with SIGBUS.
	// Processes that map the same file share its memory.
	WeightsMapped Weights = C.WI_WEIGHTS_MAPPED
	// In memory of this process alone. What becomes of the file then does not matter.
	WeightsCopied Weights = C.WI_WEIGHTS_COPIED
)

// ModelParams say how a model is opened; zero means default.
type ModelParams struct {
	Precision Precision // of all sessions of this model
	Weights   Weights   // where they lie; zero: in the file
	// Called with bytes of the weights looked at or copied, and bytes in all, which is 0 until the files'
	// tables are read; at least every 250 ms. An error ends the call.
	Progress func(done, total uint64) error
}

// Model is weights, a tokenizer and hyper-parameters; immutable. Any number of goroutines may use it at once.
type Model struct {
	handle  *handle[*C.wi_model]
	cleanup runtime.Cleanup
}

// Open opens a model in a runtime of its own, with default parameters, that lives as long as the model and
// what is made of it: see [Runtime.Open].
func Open(ctx context.Context, path string, params *ModelParams) (*Model, error) {
	r, err := NewRuntime(nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Open(ctx, path, params)
}

// Open opens a model: a .gguf file (of a split set, the first) or a directory with config.json,
// tokenizer.json and *.safetensors. Architectures llama, qwen2 and qwen3; weights f32, f16, bf16, q8_0, q4_0,
// q4_1, q5_0, q5_1, q2_K, q3_K, q4_K, q5_K, q6_K, of which a device takes f32, f16, bf16, q8_0, q4_0, q4_K, q5_K and
// q6_K. Files are not trusted: what is broken, or made to cost, is refused. nil params mean all defaults.
//
// Errors: [ErrIO]; [ErrCancelled]; [ErrFormat] for a broken file; [ErrUnsupported] for an architecture, weight
// type, tokenizer or other field that is not implemented, by name; [ErrMemory] if a copy of the weights is
// more than this process may use.
func (r *Runtime) Open(ctx context.Context, path string, params *ModelParams) (*Model, error) {
	name, err := terminated("path", path)
	if err != nil {
		return nil, err
	}
	return r.open(ctx, params, nil, nil, func(c *call, p *C.wi_model_params, out **C.wi_model) C.wi_status {
		return C.wi_model_open(r.handle.object, name, p, c.token(), out, &c.error)
	})
}

// OpenMemory opens a model from a whole GGUF file in memory, no part of a split set. With [WeightsMapped] the
// weights are used where they lie: data must be aligned to 8 bytes, as what make returns is, and must not
// change while the model or what is made of it lives; the garbage collector leaves it alone so long. With
// [WeightsCopied] it may change when the call returns. The rest: as [Runtime.Open].
func (r *Runtime) OpenMemory(ctx context.Context, data []byte, params *ModelParams) (*Model, error) {
	var memory *pinnedMemory
	if params == nil || params.Weights != WeightsCopied {
		memory = pinMemory(data)
	}
	return r.open(ctx, params, nil, memory, func(c *call, p *C.wi_model_params, out **C.wi_model) C.wi_status {
		return C.wi_model_open_memory(r.handle.object, unsafe.Pointer(unsafe.SliceData(data)),
			C.uint64_t(len(data)), p, c.token(), out, &c.error)
	})
}

// OpenReader opens a model from a whole GGUF file of so many bytes, which is read once, from its beginning to
// its end, a megabyte at most at a time. The weights are copied, whatever params says of them. An error of
// the reader ends the call with [ErrIO] and is wrapped. The rest: as [Runtime.Open].
func (r *Runtime) OpenReader(ctx context.Context, reader io.Reader, bytes int64, params *ModelParams) (*Model, error) {
	if err := checkReader(reader, bytes); err != nil {
		return nil, err
	}
	return r.open(ctx, params, reader, nil, func(c *call, p *C.wi_model_params, out **C.wi_model) C.wi_status {
		return C.wi_model_open_reader(r.handle.object, readerOf(bytes), p, c.token(), out, &c.error)
	})
}

// open makes a model by a call, which is served if it may call back.
func (r *Runtime) open(ctx context.Context, params *ModelParams, reader io.Reader, memory *pinnedMemory,
	open func(c *call, p *C.wi_model_params, out **C.wi_model) C.wi_status) (*Model, error) {
	out, opened := new(*C.wi_model), false
	defer func() {
		if !opened { // a callback may have panicked too
			C.wi_model_release(*out)
			memory.unpin()
		}
	}()
	c, err := r.handle.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer c.end()
	p := &C.wi_model_params{struct_size: C.sizeof_wi_model_params}
	if params != nil {
		p.precision = C.int32_t(params.Precision)
		p.weights = C.int32_t(params.Weights)
	}
	if params != nil && params.Progress != nil {
		c.progress = params.Progress
		p.progress = C.wi_progress_callback(C.wi_go_progress)
	}
	c.reader = reader
	if err := c.check(c.run(func() C.wi_status { return open(c, p, out) })); err != nil {
		return nil, err
	}
	opened = true
	return newModel(*out, r.handle.log, memory), nil
}

func newModel(object *C.wi_model, log *logSink, memory *pinnedMemory) *Model {
	m := &Model{handle: &handle[*C.wi_model]{
		object: object, kind: "model", log: log, keep: memory,
		release: func(object *C.wi_model) { C.wi_model_release(object) },
	}}
	m.cleanup = runtime.AddCleanup(m, (*handle[*C.wi_model]).close, m.handle)
	return m
}

// pinnedMemory is memory of Go that weights lie in: it is unpinned when no handle refers to it any more.
type pinnedMemory struct {
	pinner  *runtime.Pinner
	cleanup runtime.Cleanup
}

func pinMemory(data []byte) *pinnedMemory {
	if len(data) == 0 {
		return nil
	}
	memory := &pinnedMemory{pinner: new(runtime.Pinner)}
	memory.pinner.Pin(unsafe.SliceData(data))
	memory.cleanup = runtime.AddCleanup(memory, (*runtime.Pinner).Unpin, memory.pinner)
	return memory
}

// unpin is for memory that no model got.
func (m *pinnedMemory) unpin() {
	if m != nil {
		m.cleanup.Stop()
		m.pinner.Unpin()
	}
}

// Close gives the model back. Sessions made from it go on. It returns nil.
func (m *Model) Close() error {
	m.cleanup.Stop()
	m.handle.close()
	return nil
}

// ModelInfo is a model's hyper-parameters.
type ModelInfo struct {
	Layers          int    // of the transformer, each with a KV cache of its own
	Hidden          int    // width of the residual stream
	QueryHeads      int    // a multiple of KVHeads
	KVHeads         int    // heads of keys and values
	HeadDim         int    // numbers of a head's key, and of its value
	FFN             int    // width of the feed-forward block
	Vocab           int    // token ids are in [0, Vocab)
	BOSToken        Token  // -1: none
	EOSToken        Token  // -1: none; Event.Kind knows every token that ends an answer
	MaxPositions    int    // the model was made for at most so many tokens; enforced where it is not implemented beyond
	Parameters      uint64 // weights, counted
	WeightBytes     uint64 // as stored in the file
	KVBytesPerToken uint64 // all layers, with f16 KV, without index
	Architecture    string // "llama", "qwen2" or "qwen3"
	Name            string // as the file calls it; may be empty
	WeightType      string // of most weight bytes: "f16", "q8_0", "q4_k" and so on
	ChatFamily      string // "template" if the file has a chat template, empty if it has none
}

// Info tells the model's hyper-parameters.
func (m *Model) Info() (ModelInfo, error) {
	c, err := m.handle.begin(never)
	if err != nil {
		return ModelInfo{}, err
	}
	defer c.end()
	info := &C.wi_model_info{struct_size: C.sizeof_wi_model_info}
	if err := c.check(C.wi_model_get_info(m.handle.object, info, &c.error)); err != nil {
		return ModelInfo{}, err
	}
	return ModelInfo{
		Layers:          int(info.layers),
		Hidden:          int(info.hidden),
		QueryHeads:      int(info.query_heads),
		KVHeads:         int(info.kv_heads),
		HeadDim:         int(info.head_dim),
		FFN:             int(info.ffn),
		Vocab:           int(info.vocab),
		BOSToken:        Token(info.bos_token),
		EOSToken:        Token(info.eos_token),
		MaxPositions:    int(info.max_positions),
		Parameters:      uint64(info.parameters),
		WeightBytes:     uint64(info.weight_bytes),
		KVBytesPerToken: uint64(info.kv_bytes_per_token),
		Architecture:    C.GoString(&info.architecture[0]),
		Name:            C.GoString(&info.name[0]),
		WeightType:      C.GoString(&info.weight_type[0]),
		ChatFamily:      C.GoString(&info.chat_family[0]),
	}, nil
}

// Metadata returns what the model's files say under a key: strings as they are, everything else as JSON. A
// GGUF's keys are its own ("general.name", "llama.block_count"); a directory has config.json's. Errors:
// [ErrArgument] for a key that the model does not have.
func (m *Model) Metadata(key string) (string, error) {
	name, err := terminated("key", key)
	if err != nil {
		return "", err
	}
	return m.text(256, func(c *call, to *C.char, capacity C.uint64_t, length *C.uint64_t) C.wi_status {
		return C.wi_model_get_metadata(m.handle.object, name, to, capacity, length, &c.error)
	})
}

// MetadataKeys lists the keys that [Model.Metadata] takes, in the order of the file.
func (m *Model) MetadataKeys() ([]string, error) {
	c, err := m.handle.begin(never)
	if err != nil {
		return nil, err
	}
	defer c.end()
	count := new(C.uint64_t)
	if err := c.check(C.wi_model_metadata_count(m.handle.object, count, &c.error)); err != nil {
		return nil, err
	}
	keys := make([]string, *count)
	for i := range keys {
		keys[i], err = m.text(64, func(c *call, to *C.char, capacity C.uint64_t, length *C.uint64_t) C.wi_status {
			return C.wi_model_metadata_key(m.handle.object, C.uint64_t(i), to, capacity, length, &c.error)
		})
		if err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// TokenFlags say what a token is.
type TokenFlags int32

// What a token may be.
const (
	TokenControl TokenFlags = C.WI_TOKEN_CONTROL // <|end|> and the like
	TokenEnd     TokenFlags = C.WI_TOKEN_END     // ends an answer: decode gives it as EventEnd
	TokenByte    TokenFlags = C.WI_TOKEN_BYTE    // stands for one byte
	TokenUnused  TokenFlags = C.WI_TOKEN_UNUSED  // fills up the vocabulary: no text becomes it
	TokenUser    TokenFlags = C.WI_TOKEN_USER    // a word that was added: found in text as a whole
)

// TokenInfo is one token of a vocabulary.
type TokenInfo struct {
	Flags TokenFlags // or-ed
	Text  string     // as Detokenize writes it within a text with DetokenizeKeepSpecial; any bytes
}

// TokenInfo tells what a token is.
func (m *Model) TokenInfo(token Token) (TokenInfo, error) {
	c, err := m.handle.begin(never)
	if err != nil {
		return TokenInfo{}, err
	}
	defer c.end()
	info := &C.wi_token_info{struct_size: C.sizeof_wi_token_info}
	if err := c.check(C.wi_model_token_info(m.handle.object, C.int32_t(token), info, &c.error)); err != nil {
		return TokenInfo{}, err
	}
	text := unsafe.String((*byte)(unsafe.Pointer(info.text)), info.text_length)
	return TokenInfo{Flags: TokenFlags(info.flags), Text: string([]byte(text))}, nil
}

// TokenizeFlags say how text becomes tokens.
type TokenizeFlags uint32

// Flags of [Model.Tokenize] and [Session.AppendText], or-ed.
const (
	TokenizeAddBOS       TokenizeFlags = C.WI_TOKENIZE_ADD_BOS       // begin with the BOS token, if the model has one
	TokenizeParseSpecial TokenizeFlags = C.WI_TOKENIZE_PARSE_SPECIAL // text like <|end|> becomes that control token
)

// Tokenize returns the ids of a text: those that the model was trained with. Nothing but BOS is ever put
// before or behind the text. Errors: [ErrArgument] for a byte that is no UTF-8, if the vocabulary has neither
// that byte nor an unknown token; [ErrUnsupported] where the file's own pattern takes too many steps.
func (m *Model) Tokenize(text string, flags TokenizeFlags) ([]Token, error) {
	bytes, length := textOf(text)
	return m.tokens(len(text)/3, func(c *call, to *C.int32_t, capacity C.uint64_t, count *C.uint64_t) C.wi_status {
		return C.wi_model_tokenize(m.handle.object, bytes, length, C.uint32_t(flags), to, capacity, count, &c.error)
	})
}

// DetokenizeFlags say how tokens become text.
type DetokenizeFlags uint32

// DetokenizeKeepSpecial writes control tokens as their names; else they are left out.
const DetokenizeKeepSpecial DetokenizeFlags = C.WI_DETOKENIZE_KEEP_SPECIAL

// Detokenize returns the text of token ids, the inverse of [Model.Tokenize]: the same bytes come back, but
// where the file's tokenizer loses some. Part of a sequence may end within a code point.
func (m *Model) Detokenize(tokens []Token, flags DetokenizeFlags) (string, error) {
	ids, count := tokensOf(tokens)
	return m.text(5*len(tokens), func(c *call, to *C.char, capacity C.uint64_t, length *C.uint64_t) C.wi_status {
		return C.wi_model_detokenize(m.handle.object, ids, count, C.uint32_t(flags), to, capacity, length, &c.error)
	})
}

// text returns what a call of C writes, which is guessed to be so long.
func (m *Model) text(guess int, write func(c *call, to *C.char, capacity C.uint64_t, length *C.uint64_t) C.wi_status) (string, error) {
	c, err := m.handle.begin(never)
	if err != nil {
		return "", err
	}
	defer c.end()
	text, err := filled(guess, func(to *byte, capacity C.uint64_t, length *C.uint64_t) error {
		return c.check(write(c, (*C.char)(unsafe.Pointer(to)), capacity, length))
	})
	return string(text), err
}

// tokens is text for ids.
func (m *Model) tokens(guess int, write func(c *call, to *C.int32_t, capacity C.uint64_t, count *C.uint64_t) C.wi_status) ([]Token, error) {
	c, err := m.handle.begin(never)
	if err != nil {
		return nil, err
	}
	defer c.end()
	return filled(guess, func(to *Token, capacity C.uint64_t, count *C.uint64_t) error {
		return c.check(write(c, (*C.int32_t)(to), capacity, count))
	})
}

// PlanMemory tells what a session of so many tokens, prompt and answer together, would take, without making
// one. nil params mean all defaults. Errors: as [Model.NewSession].
func (m *Model) PlanMemory(params *SessionParams, tokens int) (MemoryPlan, error) {
	count, err := countOf("tokens", tokens)
	if err != nil {
		return MemoryPlan{}, err
	}
	c, err := m.handle.begin(never)
	if err != nil {
		return MemoryPlan{}, err
	}
	defer c.end()
	var pinned pins
	defer pinned.Unpin()
	p, hook := pinned.session(params)
	defer hook.drop()
	if pinned.err != nil {
		return MemoryPlan{}, pinned.err
	}
	plan := &C.wi_memory_plan{struct_size: C.sizeof_wi_memory_plan}
	if err := c.check(C.wi_model_plan_memory(m.handle.object, p, count, plan, &c.error)); err != nil {
		return MemoryPlan{}, err
	}
	return memoryPlanOf(plan), nil
}
