package waveinfer

// #include "callback.h"
import "C"

import (
	"math"
	"runtime"
	"strings"
	"unsafe"
)

// Token is the id of a token: in [0, vocab).
type Token int32

// KVType is the type of stored keys and values. Scores, sums and merges are float32 with all of them.
type KVType int32

// The types of stored keys and values. When a session or a store is loaded, KVF16, which is zero, means as saved.
const (
	KVF16  KVType = C.WI_KV_F16 // the default
	KVBF16 KVType = C.WI_KV_BF16
	KVF32  KVType = C.WI_KV_F32
)

// PrefixReuse says whether a prompt takes over segments of another session.
type PrefixReuse int32

// The ways of reusing prefixes: a prompt that starts as another living session's did, with the same model and
// parameters, takes over its sealed segments instead of computing them. Auto: whole chunks, which changes no bit
// (or as saved, when a session is loaded). On: whatever there is, and logits differ by rounding.
const (
	PrefixReuseAuto PrefixReuse = C.WI_PREFIX_REUSE_AUTO
	PrefixReuseOff  PrefixReuse = C.WI_PREFIX_REUSE_OFF
	PrefixReuseOn   PrefixReuse = C.WI_PREFIX_REUSE_ON
)

// PolicyParams says how the past is indexed and what a query reads of it. A sequence is its first 4 tokens,
// sealed segments, and the recent tokens. The first and the recent ones are attended exactly; a segment's
// keys are clustered per layer and KV head, and a query ranks all clusters, reads the best exactly, takes the
// next through centroid, size and value sum, and drops the rest, counted in the statistics. waveinfer.h says
// more at wi_policy_params. When a session is loaded, zero means as saved instead of the default.
type PolicyParams struct {
	// "wave", "full" (every token is read), "streaming" or "blocks"; Runtime.Policies lists them. "": "wave".
	Name string
	// Tokens of the longest segments: a multiple of 64 in [64, 1048576]. 0: 8192.
	SegmentTokens int
	// Tokens of the shortest segments, and of those sealed while decoding; range as above. 0: 256.
	DecodeSegmentTokens int
	// Mean cluster size, 1 to 1024. 0: 16.
	TokensPerCentroid int
	// Iterations of spherical k-means, 1 to 100. 0: 10.
	KMeansIterations int
	// Most recent tokens that are never sealed, at most 1048576. 0: 64; negative: none.
	LocalWindow int
	// Share of the indexed tokens read exactly, in (0, 1]; 1: all. 0: 0.018.
	Budget float32
	// Share of the clusters estimated, at most 1; 1: all that are not read. 0: 0.232; negative: none.
	Estimation float32
	// In [0, 1). Above 0: read clusters until the estimated share of attention mass covered exactly reaches
	// this. 0: the fixed budget.
	TargetMass float32
	// With TargetMass: at least this share, in (0, BudgetCeiling]. 0: Budget / 8.
	BudgetFloor float32
	// With TargetMass: at most this share, in (0, 1]. 0: Budget * 4, at most 1.
	BudgetCeiling float32
	// Under "wave": of how many places where the newest tokens stood before, at most 8, the clusters of what
	// came then are read whatever their rank. 0: 2; negative: none.
	Repeats int
}

// LogitBias is added to the logit of a token. Several of one token add up.
type LogitBias struct {
	Token Token   // its id, in [0, vocab)
	Bias  float32 // negative infinity forbids the token; not NaN
}

// SamplingParams says how decode picks a token from the logits: LogitBias, LogitsCallback, penalty,
// temperature, TopK, MinP, TopP, in this order. The same seed and the same logits give the same tokens, on
// every machine. Zero: greedy. Where nothing is left to pick, decode fails with [ErrState].
type SamplingParams struct {
	Temperature       float32     // [0, 100]. 0: greedy, always the best token
	TopK              int         // keep so many best tokens. 0: all
	TopP              float32     // (0, 1]: keep the best tokens that have this probability together. 0: all
	MinP              float32     // [0, 1): drop tokens less likely than this share of the best one. 0: off
	RepetitionPenalty float32     // (0, 100]: divides positive logits of recent tokens, multiplies negative ones. 0: off
	RepetitionWindow  int         // recent tokens that it looks at. 0: 64
	Seed              uint64      // of the random numbers
	LogitBias         []LogitBias // added to the logits first of all
	// LogitsCallback changes the logits that a token is about to be sampled from, in place: (vocab); negative
	// infinity forbids a token. The slice must not be used after it returns. Model logits, those that
	// Session.Logits gives and log-probabilities come from, stay as they are. An error ends the call. It may be
	// called again for the same token if the call fails after it. Forks inherit it, Save does not save it, and
	// tasks call it on a goroutine of its own while all tasks of the runtime wait: it must not close one.
	LogitsCallback func(logits []float32) error
	// Stops are strings that end an answer, at most 64 of 1 to 1024 bytes. Text that may yet become one is held
	// back until that is decided; when one is complete the event is EventStop, and neither it nor what its last
	// token has beyond it is ever told. They are looked for in what events tell, not in prompts.
	Stops       []string
	TopLogprobs int // 0 to 64: how many of the likeliest tokens an event lists
}

// SessionParams are the parameters of a session; nil and zero mean default. When a session is loaded, zero
// means as saved: see [Model.Load].
type SessionParams struct {
	KVType   KVType          // of its keys and values
	Policy   *PolicyParams   // nil: all defaults
	Sampling *SamplingParams // nil: greedy
	// Most bytes of this session's KV and index, shared segments included. 0: only the runtime's budget counts.
	KVBudgetBytes uint64
	// Chunks of at most so many tokens, appended to a past that has segments, read it through the policy as a
	// decode step does, so that the answer to a short question starts soon. 0: every appended token attends
	// exactly to everything before it.
	SparseReadTokens int
	PrefixReuse      PrefixReuse // whether a prompt takes over segments of another session
	// With RuntimeParams.SpillFolder, or on a device: the share of this session's sealed keys and values that may
	// stay in fast memory, in (0, 1]. 0: as much as the budgets have room for.
	KVFastShare float32
}

// pins holds Go memory in place that params point to, until the call that they are for has returned.
type pins struct {
	runtime.Pinner
	err error // the first thing that could not be converted
}

// text is a string as a pointer and a length.
func (p *pins) text(s string) (*C.char, C.uint64_t) {
	if s == "" {
		return nil, 0
	}
	data := unsafe.StringData(s)
	p.Pin(data)
	return (*C.char)(unsafe.Pointer(data)), C.uint64_t(len(s))
}

// name is a string as C has them; "" is NULL.
func (p *pins) name(field, s string) *C.char {
	if s == "" {
		return nil
	}
	name, err := terminated(field, s)
	if err != nil {
		if p.err == nil {
			p.err = err
		}
		return nil
	}
	p.Pin(name)
	return name
}

// terminated copies a string and puts a NUL behind it, which must be the only one.
func terminated(field, s string) (*C.char, error) {
	if at := strings.IndexByte(s, 0); at >= 0 {
		return nil, argumentError("%s has a NUL at offset %d", field, at)
	}
	bytes := make([]byte, len(s)+1)
	copy(bytes, s)
	return (*C.char)(unsafe.Pointer(&bytes[0])), nil
}

func (p *pins) policy(from *PolicyParams) *C.wi_policy_params {
	if from == nil {
		return nil
	}
	to := &C.wi_policy_params{
		struct_size:           C.sizeof_wi_policy_params,
		segment_tokens:        int32Of(from.SegmentTokens),
		name:                  p.name("PolicyParams.Name", from.Name),
		decode_segment_tokens: int32Of(from.DecodeSegmentTokens),
		tokens_per_centroid:   int32Of(from.TokensPerCentroid),
		kmeans_iterations:     int32Of(from.KMeansIterations),
		local_window:          int32Of(from.LocalWindow),
		budget:                C.float(from.Budget),
		estimation:            C.float(from.Estimation),
		target_mass:           C.float(from.TargetMass),
		budget_floor:          C.float(from.BudgetFloor),
		budget_ceiling:        C.float(from.BudgetCeiling),
		repeats:               int32Of(from.Repeats),
	}
	p.Pin(to)
	return to
}

// sampling also makes a hook for the logits callback, which the session is to keep; nil as from is.
func (p *pins) sampling(from *SamplingParams) (*C.wi_sampling_params, *logitsHook) {
	if from == nil {
		return nil, nil
	}
	to := &C.wi_sampling_params{
		struct_size:        C.sizeof_wi_sampling_params,
		temperature:        C.float(from.Temperature),
		top_k:              int32Of(from.TopK),
		top_p:              C.float(from.TopP),
		min_p:              C.float(from.MinP),
		repetition_penalty: C.float(from.RepetitionPenalty),
		repetition_window:  int32Of(from.RepetitionWindow),
		seed:               C.uint64_t(from.Seed),
		top_logprobs:       int32Of(from.TopLogprobs),
	}
	p.Pin(to)
	if len(from.LogitBias) > 0 {
		biases := make([]C.wi_logit_bias, len(from.LogitBias))
		for i, bias := range from.LogitBias {
			biases[i] = C.wi_logit_bias{token: C.int32_t(bias.Token), bias: C.float(bias.Bias)}
		}
		p.Pin(&biases[0])
		to.logit_bias, to.logit_bias_count = &biases[0], C.uint64_t(len(biases))
	}
	if len(from.Stops) > 0 {
		stops := make([]C.wi_text, len(from.Stops))
		for i, stop := range from.Stops {
			stops[i].text, stops[i].length = p.text(stop)
		}
		p.Pin(&stops[0])
		to.stops, to.stop_count = &stops[0], C.uint64_t(len(stops))
	}
	hook := newLogitsHook(from.LogitsCallback)
	if hook.user != nil {
		to.logits_callback, to.logits_user = C.wi_logits_callback(C.wi_go_logits), hook.user.user
	}
	return to, hook
}

func (p *pins) session(from *SessionParams) (*C.wi_session_params, *logitsHook) {
	if from == nil {
		return nil, nil
	}
	sampling, hook := p.sampling(from.Sampling)
	return &C.wi_session_params{
		struct_size:        C.sizeof_wi_session_params,
		kv_type:            C.int32_t(from.KVType),
		policy:             p.policy(from.Policy),
		sampling:           sampling,
		kv_budget_bytes:    C.uint64_t(from.KVBudgetBytes),
		sparse_read_tokens: int32Of(from.SparseReadTokens),
		prefix_reuse:       C.int32_t(from.PrefixReuse),
		kv_fast_share:      C.float(from.KVFastShare),
	}, hook
}

// int32Of is n, or the nearest that the field can hold, which is as much out of its range as n.
func int32Of(n int) C.int32_t {
	return C.int32_t(min(max(n, math.MinInt32), math.MaxInt32))
}

// countOf is n as C counts.
func countOf(name string, n int) (C.uint64_t, error) {
	if n < 0 {
		return 0, argumentError("%s is %d, must not be negative", name, n)
	}
	return C.uint64_t(n), nil
}

// tokensOf is a slice as C has it.
func tokensOf(tokens []Token) (*C.int32_t, C.uint64_t) {
	return (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(tokens))), C.uint64_t(len(tokens))
}

// floatsOf is the start of a slice.
func floatsOf(values []float32) *C.float { return (*C.float)(unsafe.Pointer(unsafe.SliceData(values))) }

// textOf is a string as an argument of a call, for which it need not be pinned.
func textOf(s string) (*C.char, C.uint64_t) {
	return (*C.char)(unsafe.Pointer(unsafe.StringData(s))), C.uint64_t(len(s))
}

// filled makes a slice that a call of C fills: with room for guess elements first, and if these are too few,
// with as many as C wants.
func filled[T any](guess int, fill func(to *T, capacity C.uint64_t, count *C.uint64_t) error) ([]T, error) {
	for {
		to := make([]T, max(guess, 1))
		count := new(C.uint64_t)
		err := fill(&to[0], C.uint64_t(len(to)), count)
		if err == nil {
			return to[:*count], nil
		}
		if *count <= C.uint64_t(len(to)) {
			return nil, err
		}
		guess = int(*count)
	}
}
