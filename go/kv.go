package waveinfer

// #include "callback.h"
import "C"

import (
	"context"
	"io"
	"math"
	"runtime"
)

// KVParams are the shape and the parameters of a KV store. There is no default shape.
type KVParams struct {
	Layers        int           // 1 to 65536
	QueryHeads    int           // 1 to 65536, a multiple of KVHeads (GQA)
	KVHeads       int           // 1 to 65536
	HeadDim       int           // 8 to 65536, a multiple of 8; a token takes at most 1 GiB in all layers
	KVType        KVType        // keys and values are rounded to it
	Policy        *PolicyParams // nil: all defaults
	KVBudgetBytes uint64        // as in SessionParams
}

// KV is a KV store alone, for programs that have model code of their own: it is given keys and values per
// layer and gives attention back, with the same segments and policies as a session. One goroutine at a time
// uses it; [KV.Stats] may be called at any time.
type KV struct {
	handle  *handle[*C.wi_kv]
	shape   KVParams
	cleanup runtime.Cleanup
}

// NewKV makes an empty store; params are required. Errors: [ErrUnsupported] for an unknown policy, and on a device.
func (r *Runtime) NewKV(params *KVParams) (*KV, error) {
	return r.newKV(never, params, func(c *call, p *C.wi_kv_params, out **C.wi_kv) C.wi_status {
		return C.wi_kv_create(r.handle.object, p, out, &c.error)
	})
}

// newKV makes a store by a call.
func (r *Runtime) newKV(ctx context.Context, params *KVParams,
	create func(c *call, p *C.wi_kv_params, out **C.wi_kv) C.wi_status) (*KV, error) {
	if params == nil {
		return nil, argumentError("params is nil, there is no default shape")
	}
	given := *params // the store's arrays are measured by the shape that C was told
	params = &given
	for _, size := range []struct {
		name  string
		value int
	}{{"Layers", params.Layers}, {"QueryHeads", params.QueryHeads}, {"KVHeads", params.KVHeads}, {"HeadDim", params.HeadDim}} {
		if size.value < 1 || size.value > math.MaxInt32 {
			return nil, argumentError("KVParams.%s is %d, must be 1 to 65536", size.name, size.value)
		}
	}
	c, err := r.handle.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer c.end()
	var pinned pins
	defer pinned.Unpin()
	p := &C.wi_kv_params{
		struct_size:     C.sizeof_wi_kv_params,
		layers:          int32Of(params.Layers),
		query_heads:     int32Of(params.QueryHeads),
		kv_heads:        int32Of(params.KVHeads),
		head_dim:        int32Of(params.HeadDim),
		kv_type:         C.int32_t(params.KVType),
		policy:          pinned.policy(params.Policy),
		kv_budget_bytes: C.uint64_t(params.KVBudgetBytes),
	}
	if pinned.err != nil {
		return nil, pinned.err
	}
	out, made := new(*C.wi_kv), false
	defer func() {
		if !made { // a reader may have panicked too
			C.wi_kv_release(*out)
		}
	}()
	if err := c.check(create(c, p, out)); err != nil {
		return nil, err
	}
	made = true
	return newKV(*out, r.handle.log, params), nil
}

func newKV(object *C.wi_kv, log *logSink, shape *KVParams) *KV {
	kv := &KV{shape: *shape, handle: &handle[*C.wi_kv]{
		object: object, kind: "KV store", log: log,
		release: func(object *C.wi_kv) { C.wi_kv_release(object) },
	}}
	kv.cleanup = runtime.AddCleanup(kv, (*handle[*C.wi_kv]).close, kv.handle)
	return kv
}

// Close gives the store back. Forks of it go on. It returns nil.
func (kv *KV) Close() error {
	kv.cleanup.Stop()
	kv.handle.close()
	return nil
}

// rowsOf is how many rows of so many numbers there are. width is above 0: the library made a store of that shape.
func rowsOf(name string, values []float32, width int) (C.uint64_t, error) {
	if len(values)%width != 0 {
		return 0, argumentError("%s has %d numbers, must be a multiple of %d", name, len(values), width)
	}
	return C.uint64_t(len(values) / width), nil
}

func sameLength(name string, values []float32, length int) error {
	if len(values) != length {
		return argumentError("%s has %d numbers, must have %d", name, len(values), length)
	}
	return nil
}

// Append appends tokens to one layer. Layers may be filled one after the other, as a model computes them; a
// token belongs to the store once every layer has it. Keys and values are (tokens, KVHeads, HeadDim), finite,
// keys rotated; they are rounded to the KV type.
//
// Errors: [ErrArgument] if a number is not finite, [ErrUnsupported] if one is beyond the KV type; [ErrBudget],
// [ErrBusy]; [ErrIO] if the disk of the slow tier fails.
func (kv *KV) Append(layer int, keys, values []float32) error {
	c, err := kv.handle.beginAlone(never) // first: the zero value, which is closed, has no shape to check by
	if err != nil {
		return err
	}
	defer c.end()
	tokens, err := rowsOf("keys", keys, kv.shape.KVHeads*kv.shape.HeadDim)
	if err == nil {
		err = sameLength("values", values, len(keys))
	}
	if err != nil {
		return err
	}
	return c.check(C.wi_kv_append(kv.handle.object, int32Of(layer), tokens, floatsOf(keys), floatsOf(values), &c.error))
}

// Seal seals what can be sealed beyond the local window, cut as a prompt of so many tokens is cut. Nothing is
// sealed without this call, and until then everything is attended exactly. Errors: [ErrState] if layers have
// different numbers of tokens; [ErrBudget], [ErrBusy]; [ErrIO] and [ErrFormat] of the slow tier, as
// [Session.Prefill].
func (kv *KV) Seal() error {
	c, err := kv.handle.beginAlone(never)
	if err != nil {
		return err
	}
	defer c.end()
	return c.check(C.wi_kv_seal(kv.handle.object, &c.error))
}

// Attend computes attention of queries over everything appended to a layer so far: softmax(q * k /
// sqrt(HeadDim)) * v. Every row sees the same tokens. Queries are (rows, QueryHeads, HeadDim), rotated, not
// scaled; out is filled with as many, normalised. lse is nil, or filled with (rows, QueryHeads) natural logs
// of the sums of exponentials, for merging with attention over other tokens. Both are unspecified after a
// failure.
//
// Errors: [ErrState] if the layer is empty; [ErrCancelled], [ErrBusy]; [ErrIO] and [ErrFormat] of the slow tier, as
// [Session.Prefill].
func (kv *KV) Attend(ctx context.Context, layer int, queries, out, lse []float32) error {
	c, err := kv.handle.beginAlone(ctx) // first, as in Append
	if err != nil {
		return err
	}
	defer c.end()
	rows, err := rowsOf("queries", queries, kv.shape.QueryHeads*kv.shape.HeadDim)
	if err == nil {
		err = sameLength("out", out, len(queries))
	}
	if err == nil && lse != nil {
		err = sameLength("lse", lse, int(rows)*kv.shape.QueryHeads)
	}
	if err != nil {
		return err
	}
	return c.check(C.wi_kv_attend(kv.handle.object, int32Of(layer), rows, floatsOf(queries), c.token(),
		floatsOf(out), floatsOf(lse), &c.error))
}

// Fork makes a second store that goes on from here on its own, as [Session.Fork].
func (kv *KV) Fork() (*KV, error) {
	c, err := kv.handle.beginAlone(never)
	if err != nil {
		return nil, err
	}
	defer c.end()
	out := new(*C.wi_kv)
	if err := c.check(C.wi_kv_fork(kv.handle.object, out, &c.error)); err != nil {
		return nil, err
	}
	return newKV(*out, kv.handle.log, &kv.shape), nil
}

// Truncate cuts the store back to its first tokens, in every layer; what only some layers have goes too.
// Errors: [ErrArgument] for more tokens than it has; [ErrBudget], [ErrBusy]; [ErrIO] and [ErrFormat] of the slow tier,
// as [Session.Prefill].
func (kv *KV) Truncate(tokens int) error {
	count, err := countOf("tokens", tokens)
	if err != nil {
		return err
	}
	c, err := kv.handle.beginAlone(never)
	if err != nil {
		return err
	}
	defer c.end()
	return c.check(C.wi_kv_truncate(kv.handle.object, count, &c.error))
}

// Stats tells what the store has done; fields about prefill, weights and prefixes stay 0. It may be called
// while another call is running.
func (kv *KV) Stats() (SessionStats, error) {
	c, err := kv.handle.begin(never)
	if err != nil {
		return SessionStats{}, err
	}
	defer c.end()
	stats := &C.wi_session_stats{struct_size: C.sizeof_wi_session_stats}
	if err := c.check(C.wi_kv_get_stats(kv.handle.object, stats, &c.error)); err != nil {
		return SessionStats{}, err
	}
	return sessionStatsOf(stats), nil
}

// Save writes the store to a file, as [Session.Save]. Errors: also [ErrState] if layers have different numbers
// of tokens.
func (kv *KV) Save(ctx context.Context, path string) error {
	name, err := terminated("path", path)
	if err != nil {
		return err
	}
	c, err := kv.handle.beginAlone(ctx)
	if err != nil {
		return err
	}
	defer c.end()
	return c.check(C.wi_kv_save(kv.handle.object, name, c.token(), &c.error))
}

// SaveTo writes the same bytes to a writer, as [Session.SaveTo]. Errors: also [ErrState], as Save.
func (kv *KV) SaveTo(ctx context.Context, writer io.Writer) error {
	if writer == nil {
		return errNoWriter
	}
	c, err := kv.handle.beginAlone(ctx)
	if err != nil {
		return err
	}
	defer c.end()
	c.writer = writer
	return c.check(c.run(func() C.wi_status {
		return C.wi_kv_save_to(kv.handle.object, writerOf(), c.token(), &c.error)
	}))
}

// SavedBytes tells how many bytes a save of the store as it is now takes. Errors: [ErrState], as Save;
// [ErrBusy].
func (kv *KV) SavedBytes() (int64, error) {
	c, err := kv.handle.beginAlone(never)
	if err != nil {
		return 0, err
	}
	defer c.end()
	bytes := new(C.uint64_t)
	err = c.check(C.wi_kv_saved_bytes(kv.handle.object, bytes, &c.error))
	return int64(*bytes), err
}

// LoadKV reads a store back, as [Model.Load] a session. params must give its shape, which a file of another
// shape does not fit: that is [ErrMismatch]. What else they leave at zero is as it was saved.
func (r *Runtime) LoadKV(ctx context.Context, path string, params *KVParams) (*KV, error) {
	name, err := terminated("path", path)
	if err != nil {
		return nil, err
	}
	return r.newKV(ctx, params, func(c *call, p *C.wi_kv_params, out **C.wi_kv) C.wi_status {
		return C.wi_kv_load(r.handle.object, name, p, c.token(), out, &c.error)
	})
}

// LoadKVFrom reads a store of so many bytes back from a reader, as [Model.LoadFrom] a session. params: as
// [Runtime.LoadKV].
func (r *Runtime) LoadKVFrom(ctx context.Context, reader io.Reader, bytes int64, params *KVParams) (*KV, error) {
	if err := checkReader(reader, bytes); err != nil {
		return nil, err
	}
	return r.newKV(ctx, params, func(c *call, p *C.wi_kv_params, out **C.wi_kv) C.wi_status {
		c.reader = reader
		return c.run(func() C.wi_status {
			return C.wi_kv_load_from(r.handle.object, readerOf(bytes), p, c.token(), out, &c.error)
		})
	})
}
