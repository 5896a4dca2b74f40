package waveinfer_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"waveinfer"
)

var kvShape = waveinfer.KVParams{Layers: 2, QueryHeads: 4, KVHeads: 2, HeadDim: 8, KVType: waveinfer.KVF32}

func normals(numbers *rand.Rand, count int) []float32 {
	values := make([]float32, count)
	for i := range values {
		values[i] = float32(numbers.NormFloat64())
	}
	return values
}

// filledKV is a store of so many tokens in each layer, and a row of queries.
func filledKV(t testing.TB, r *waveinfer.Runtime, tokens int) (*waveinfer.KV, []float32) {
	t.Helper()
	kv := must(r.NewKV(&kvShape))(t)
	t.Cleanup(func() { kv.Close() })
	numbers := rand.New(rand.NewPCG(1, 2))
	for layer := range kvShape.Layers {
		width := tokens * kvShape.KVHeads * kvShape.HeadDim
		succeed(t, kv.Append(layer, normals(numbers, width), normals(numbers, width)))
	}
	return kv, normals(numbers, kvShape.QueryHeads*kvShape.HeadDim)
}

func attended(t testing.TB, kv *waveinfer.KV, queries []float32) []float32 {
	t.Helper()
	out := make([]float32, len(queries))
	succeed(t, kv.Attend(background, 1, queries, out, nil))
	return out
}

// attention is what Attend shall give: softmax(q * k / sqrt(head_dim)) * v, and its log-sum-exp.
func attention(queries, keys, values []float32) (out, lse []float32) {
	heads, dim := kvShape.KVHeads, kvShape.HeadDim
	out = make([]float32, len(queries))
	for q := range len(queries) / dim {
		head := q % kvShape.QueryHeads / (kvShape.QueryHeads / heads)
		sum, mix := 0.0, make([]float64, dim)
		for at := head * dim; at < len(keys); at += heads * dim {
			score := 0.0
			for d := range dim {
				score += float64(queries[q*dim+d]) * float64(keys[at+d])
			}
			weight := math.Exp(score / math.Sqrt(float64(dim)))
			sum += weight
			for d := range dim {
				mix[d] += weight * float64(values[at+d])
			}
		}
		for d := range dim {
			out[q*dim+d] = float32(mix[d] / sum)
		}
		lse = append(lse, float32(math.Log(sum)))
	}
	return out, lse
}

func near(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Abs(float64(x-y)) < 1e-4 })
}

func TestAStoreAttendsExactlyToWhatIsNotSealed(t *testing.T) {
	numbers := random(t)
	kv := must(newRuntime(t, nil).NewKV(&kvShape))(t)
	defer kv.Close()
	tokens, rows := 1+numbers.IntN(40), 1+numbers.IntN(5)
	keys := normals(numbers, tokens*kvShape.KVHeads*kvShape.HeadDim)
	values := normals(numbers, len(keys))
	queries := normals(numbers, rows*kvShape.QueryHeads*kvShape.HeadDim)
	succeed(t, kv.Append(1, keys, values))
	out, lse := make([]float32, len(queries)), make([]float32, rows*kvShape.QueryHeads)
	succeed(t, kv.Attend(background, 1, queries, out, lse))
	wantOut, wantLSE := attention(queries, keys, values)
	if !near(out, wantOut) || !near(lse, wantLSE) {
		t.Errorf("%v and %v, want %v and %v", out, lse, wantOut, wantLSE)
	}
}

func TestSealedTokensAreAttendedThroughTheIndex(t *testing.T) {
	kv, queries := filledKV(t, newRuntime(t, nil), 4096)
	exact := attended(t, kv, queries)
	succeed(t, kv.Seal())
	stats := must(kv.Stats())(t)
	if stats.Segments == 0 || stats.Tokens != 4096 || stats.IndexBytes == 0 {
		t.Errorf("%+v", stats)
	}
	if through := attended(t, kv, queries); slices.Equal(exact, through) {
		t.Error("the index changed nothing")
	}
}

func TestSlicesOfAWrongLengthAreRefused(t *testing.T) {
	kv, queries := filledKV(t, newRuntime(t, nil), 4)
	long := make([]float32, 64)
	wantError(t, kv.Append(0, long[:17], long[:17]), waveinfer.ErrArgument)
	wantError(t, kv.Append(0, long[:16], long[:15]), waveinfer.ErrArgument)
	wantError(t, kv.Append(7, long[:16], long[:16]), waveinfer.ErrArgument)
	wantError(t, kv.Attend(background, 0, queries, long[:31], nil), waveinfer.ErrArgument)
	wantError(t, kv.Attend(background, 0, queries, long[:32], long[:3]), waveinfer.ErrArgument)
	wantError(t, kv.Attend(background, 0, queries[:31], long[:31], nil), waveinfer.ErrArgument)
	wantError(t, kv.Append(0, []float32{0: float32(math.NaN()), 15: 0}, long[:16]), waveinfer.ErrArgument)
	_, err := newRuntime(t, nil).NewKV(nil)
	wantError(t, err, waveinfer.ErrArgument)
	_, err = newRuntime(t, nil).NewKV(&waveinfer.KVParams{Layers: 1, QueryHeads: 3, KVHeads: 2, HeadDim: 8})
	wantError(t, err, waveinfer.ErrArgument)
}

func TestForksAndTruncatedStoresAttendOnTheirOwn(t *testing.T) {
	kv, queries := filledKV(t, newRuntime(t, nil), 32)
	whole := attended(t, kv, queries)
	fork := must(kv.Fork())(t)
	defer fork.Close()
	succeed(t, kv.Truncate(8))
	if got := attended(t, fork, queries); !near(got, whole) {
		t.Errorf("the fork attends to %v, want %v", got, whole)
	}
	if got := attended(t, kv, queries); near(got, whole) {
		t.Error("truncate changed nothing")
	}
	wantError(t, kv.Truncate(100), waveinfer.ErrArgument)
	wantError(t, kv.Truncate(-1), waveinfer.ErrArgument)
}

func TestASavedStoreAttendsAsItDid(t *testing.T) {
	r := newRuntime(t, nil)
	kv, queries := filledKV(t, r, 2048)
	succeed(t, kv.Seal())
	want := attended(t, kv, queries)
	path := filepath.Join(t.TempDir(), "store")
	succeed(t, kv.Save(background, path))
	var stream bytes.Buffer
	succeed(t, kv.SaveTo(background, &stream))
	if size := must(kv.SavedBytes())(t); size != int64(stream.Len()) {
		t.Errorf("%d bytes were written, %d announced", stream.Len(), size)
	}
	for _, loaded := range []*waveinfer.KV{
		must(r.LoadKV(background, path, &kvShape))(t),
		must(r.LoadKVFrom(background, &stream, int64(stream.Len()), &kvShape))(t),
	} {
		if got := attended(t, loaded, queries); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		loaded.Close()
	}
	other := kvShape
	other.QueryHeads = 8
	_, err := r.LoadKV(background, path, &other)
	wantError(t, err, waveinfer.ErrMismatch)
	_, err = r.LoadKV(background, path, nil)
	wantError(t, err, waveinfer.ErrArgument)
	_, err = openModel(t).Load(background, path, nil)
	wantError(t, err, waveinfer.ErrFormat)
}

func TestAStoreWhoseLayersDifferCannotBeSealed(t *testing.T) {
	kv, _ := filledKV(t, newRuntime(t, nil), 4)
	succeed(t, kv.Append(0, make([]float32, 16), make([]float32, 16)))
	wantError(t, kv.Seal(), waveinfer.ErrState)
	_, err := kv.SavedBytes()
	wantError(t, err, waveinfer.ErrState)
}
