package waveinfer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"waveinfer"
	"waveinfer/internal/abi"
)

// values are the constants of the manifest as this package has them. Flags that are bools here are not.
var values = map[string]int64{
	"WI_OK":             0,
	"WI_ABI_VERSION":    abi.Version,
	"WI_E_ARGUMENT":     int64(waveinfer.ErrArgument),
	"WI_E_FORMAT":       int64(waveinfer.ErrFormat),
	"WI_E_UNSUPPORTED":  int64(waveinfer.ErrUnsupported),
	"WI_E_IO":           int64(waveinfer.ErrIO),
	"WI_E_MEMORY":       int64(waveinfer.ErrMemory),
	"WI_E_BUDGET":       int64(waveinfer.ErrBudget),
	"WI_E_CANCELLED":    int64(waveinfer.ErrCancelled),
	"WI_E_BUSY":         int64(waveinfer.ErrBusy),
	"WI_E_STATE":        int64(waveinfer.ErrState),
	"WI_E_MISMATCH":     int64(waveinfer.ErrMismatch),
	"WI_E_DEVICE":       int64(waveinfer.ErrDevice),
	"WI_E_DEVICE_LOST":  int64(waveinfer.ErrDeviceLost),
	"WI_E_INTERNAL":     int64(waveinfer.ErrInternal),
	"WI_LOG_NONE":       int64(waveinfer.LogDefault),
	"WI_LOG_ERROR":      int64(waveinfer.LogError),
	"WI_LOG_WARNING":    int64(waveinfer.LogWarning),
	"WI_LOG_INFO":       int64(waveinfer.LogInfo),
	"WI_LOG_DEBUG":      int64(waveinfer.LogDebug),
	"WI_EVENT_TOKEN":    int64(waveinfer.EventToken),
	"WI_EVENT_END":      int64(waveinfer.EventEnd),
	"WI_EVENT_STOP":     int64(waveinfer.EventStop),
	"WI_EVENT_LIMIT":    int64(waveinfer.EventLimit),
	"WI_EVENT_FAILED":   int64(waveinfer.EventFailed),
	"WI_TASK_QUEUED":    int64(waveinfer.TaskQueued),
	"WI_TASK_READING":   int64(waveinfer.TaskReading),
	"WI_TASK_WRITING":   int64(waveinfer.TaskWriting),
	"WI_TASK_DONE":      int64(waveinfer.TaskDone),
	"WI_TASK_CANCELLED": int64(waveinfer.TaskCancelled),
	"WI_TASK_FAILED":    int64(waveinfer.TaskFailed),
	"WI_KV_F16":         int64(waveinfer.KVF16),
	"WI_KV_BF16":        int64(waveinfer.KVBF16),
	"WI_KV_F32":         int64(waveinfer.KVF32),
	"WI_TOKEN_CONTROL":  int64(waveinfer.TokenControl),
	"WI_TOKEN_END":      int64(waveinfer.TokenEnd),
	"WI_TOKEN_BYTE":     int64(waveinfer.TokenByte),
	"WI_TOKEN_UNUSED":   int64(waveinfer.TokenUnused),
	"WI_TOKEN_USER":     int64(waveinfer.TokenUser),
	"WI_BIND_AUTO":      int64(waveinfer.BindAuto),
	"WI_BIND_OFF":       int64(waveinfer.BindOff),
	"WI_BUFFER_AUTO":    int64(waveinfer.BufferAuto),
	"WI_BUFFER_LRU":     int64(waveinfer.BufferLRU),
	"WI_PRECISION_FAST": int64(waveinfer.PrecisionFast),
	"WI_PRECISION_F32":  int64(waveinfer.PrecisionF32),
	"WI_PRECISION_HIGH": int64(waveinfer.PrecisionHigh),
	"WI_PRECISION_INT8": int64(waveinfer.PrecisionInt8),
	"WI_WEIGHTS_MAPPED": int64(waveinfer.WeightsMapped),
	"WI_WEIGHTS_COPIED": int64(waveinfer.WeightsCopied),

	"WI_EVENT_CANCELLED":            int64(waveinfer.EventCancelled),
	"WI_HUGE_PAGES_AUTO":            int64(waveinfer.HugePagesAuto),
	"WI_HUGE_PAGES_OFF":             int64(waveinfer.HugePagesOff),
	"WI_BUFFER_BUCKETED":            int64(waveinfer.BufferBucketed),
	"WI_TOKENIZE_ADD_BOS":           int64(waveinfer.TokenizeAddBOS),
	"WI_TOKENIZE_PARSE_SPECIAL":     int64(waveinfer.TokenizeParseSpecial),
	"WI_DETOKENIZE_KEEP_SPECIAL":    int64(waveinfer.DetokenizeKeepSpecial),
	"WI_CHAT_ADD_GENERATION_PROMPT": 1, // ChatParams.AddGenerationPrompt
	"WI_PREFIX_REUSE_AUTO":          int64(waveinfer.PrefixReuseAuto),
	"WI_PREFIX_REUSE_OFF":           int64(waveinfer.PrefixReuseOff),
	"WI_PREFIX_REUSE_ON":            int64(waveinfer.PrefixReuseOn),
}

// manifest returns the manifest's lines that begin with kind, in fields.
func manifest(t *testing.T, kind string) [][]string {
	t.Helper()
	text, err := os.ReadFile("../tests/abi/waveinfer-2.abi.txt")
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == kind {
			lines = append(lines, fields[1:])
		}
	}
	if len(lines) == 0 {
		t.Fatalf("the manifest has no %s", kind)
	}
	return lines
}

func TestStructsAreLaidOutAsTheManifestSays(t *testing.T) {
	seen := map[string]bool{}
	for _, line := range manifest(t, "struct") {
		name := line[0]
		seen[name] = true
		have, ok := abi.Structs[name]
		if !ok {
			t.Errorf("%s is not known", name)
			continue
		}
		if got, want := fmt.Sprintf("size %d align %d", have.Size(), have.Align()), strings.Join(line[1:], " "); got != want {
			t.Errorf("%s: %s, the manifest says %s", name, got, want)
		}
	}
	for name := range abi.Structs {
		if !seen[name] {
			t.Errorf("%s is not in the manifest", name)
		}
	}
	for _, line := range manifest(t, "field") {
		name, field, _ := strings.Cut(line[0], ".")
		have, ok := abi.Structs[name]
		if !ok {
			continue // reported above
		}
		at, ok := have.FieldByName(field)
		if !ok {
			t.Errorf("%s has no %s", name, field)
			continue
		}
		if got, want := fmt.Sprintf("offset %d size %d", at.Offset, at.Type.Size()), strings.Join(line[1:], " "); got != want {
			t.Errorf("%s: %s, the manifest says %s", line[0], got, want)
		}
	}
}

func TestValuesAreThoseOfTheManifest(t *testing.T) {
	seen := map[string]bool{}
	for _, line := range manifest(t, "value") {
		seen[line[0]] = true
		have, ok := values[line[0]]
		if !ok {
			t.Errorf("%s is not known", line[0])
		} else if fmt.Sprint(have) != line[1] {
			t.Errorf("%s is %d, the manifest says %s", line[0], have, line[1])
		}
	}
	for name := range values {
		if !seen[name] {
			t.Errorf("%s is not in the manifest", name)
		}
	}
}

// sourceFiles are the package's own, without tests.
func sourceFiles(t *testing.T) []string {
	t.Helper()
	files := must(filepath.Glob("*.go"))(t)
	return slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, "_test.go") })
}

func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, file := range sourceFiles(t) {
		all.Write(must(os.ReadFile(file))(t))
	}
	return all.String()
}

func TestEveryFunctionIsBound(t *testing.T) {
	text := sources(t)
	for _, line := range manifest(t, "symbol") {
		if strings.HasSuffix(line[0], "_retain") {
			continue // a handle of Go has one reference of C's, and counts Go's own
		}
		if !strings.Contains(text, "C."+line[0]+"(") {
			t.Errorf("nothing calls %s", line[0])
		}
	}
}

func TestEveryFieldIsBound(t *testing.T) {
	// The status is the code; callbacks find their call by the thread that they are on.
	unused := []string{"wi_error.code", "wi_reader.user", "wi_writer.user", "wi_model_params.progress_user", "wi_prefill_params.progress_user"}
	used := map[string]bool{} // to.field and {field: ...}
	for _, match := range regexp.MustCompile(`\.(\w+)|\b(\w+):`).FindAllStringSubmatch(sources(t), -1) {
		used[match[1]+match[2]] = true
	}
	for _, line := range manifest(t, "field") {
		_, field, _ := strings.Cut(line[0], ".")
		if strings.HasPrefix(field, "reserved") || slices.Contains(unused, line[0]) {
			continue
		}
		if !used[field] {
			t.Errorf("nothing uses %s", line[0])
		}
	}
}
