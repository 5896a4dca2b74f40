package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"waveinfer"
)

// options are what the command line says.
type options struct {
	model         string // path
	name          string // what clients call the model
	listen        string
	hosts         []string      // names by which a proxy may ask on this machine
	documents     string        // folder that documents are saved in
	documentsDisk int64         // most bytes of them there; 0: no bound
	documentBytes int64         // most, of a text; any other request's body has no more either
	context       int           // most tokens of prompt and answer together; 0: as many as the model was made for
	maxTokens     int           // most tokens of an answer
	parallel      int           // most requests with the engine
	queue         int           // most requests that wait for that
	queueTime     time.Duration // for so long at most
	grace         time.Duration // that requests have to end when the service is to stop
	kvBudget      int64         // 0: as the library chooses
	threads       int
	policy        string
	sparseRead    int
	spill         string
	device        string
	weights       waveinfer.Weights
	log           slog.Level
}

func parseOptions(arguments []string, messages io.Writer) (options, error) {
	o := options{documents: defaultFolder(), documentBytes: 64 << 20, weights: waveinfer.WeightsCopied}
	set := flag.NewFlagSet("service", flag.ContinueOnError)
	set.SetOutput(messages)
	set.StringVar(&o.model, "model", "", "`file` (.gguf) or folder of the model; required")
	set.StringVar(&o.name, "name", "", "what clients call the model (default: the file's name)")
	set.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` to listen at")
	set.Func("host", "`name` that a proxy on this machine asks for, besides localhost; may be repeated", func(name string) error {
		o.hosts = append(o.hosts, name)
		return nil
	})
	set.StringVar(&o.documents, "documents", o.documents, "`folder` that documents are saved in")
	set.Func("documents-disk", "most `bytes` of saved documents, such as 100G; more are refused (default: no bound)", bytesTo(&o.documentsDisk))
	set.Func("document-bytes", "most `bytes` of a document (default 64M)", bytesTo(&o.documentBytes))
	set.IntVar(&o.context, "context", 0, "most `tokens` of prompt and answer together (default: the model's)")
	set.IntVar(&o.maxTokens, "max-tokens", 4096, "most `tokens` of an answer")
	set.IntVar(&o.parallel, "parallel", 64, "most `requests` that are worked on at a time")
	set.IntVar(&o.queue, "queue", 64, "most `requests` that wait; more get 429")
	set.DurationVar(&o.queueTime, "queue-time", 30*time.Second, "longest `time` that one waits")
	set.DurationVar(&o.grace, "grace", 30*time.Second, "longest `time` that requests have to end after SIGTERM")
	set.Func("kv-budget", "most `bytes` of keys and values, such as 8G (default: 80 % of memory)", bytesTo(&o.kvBudget))
	set.IntVar(&o.threads, "threads", 0, "that work (default: one for each core)")
	set.StringVar(&o.policy, "policy", "", "wave or full (default wave)")
	set.IntVar(&o.sparseRead, "sparse-read", 0, "questions of at most so many `tokens` read their document through the index")
	set.StringVar(&o.spill, "spill", "", "`folder` on a local disk for keys and values that memory has no room for")
	set.StringVar(&o.device, "device", "cpu", "`name` of what it runs on: cpu, cuda or cuda:1")
	set.Func("load", "`where` weights lie: copied, in memory, or mapped, in the file, which must then not change (default copied)", o.setWeights)
	set.TextVar(&o.log, "log", slog.LevelInfo, "`level` of what is logged: debug, info, warn or error")
	if err := set.Parse(arguments); err != nil {
		return o, err
	}
	return o, o.check(set.Args())
}

// setWeights understands what wi_ask --load does. The default is another one: whoever puts a new file in the place of a
// served one may cut it short, which ends a process that has it mapped.
func (o *options) setWeights(where string) error {
	switch where {
	case "copied":
		o.weights = waveinfer.WeightsCopied
	case "mapped":
		o.weights = waveinfer.WeightsMapped
	default:
		return fmt.Errorf("%q is neither copied nor mapped", where)
	}
	return nil
}

func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is no option; --help lists them", rest[0])
	case o.model == "":
		return errors.New("--model is missing")
	case o.parallel < 1 || o.queue < 0 || o.maxTokens < 1 || o.context < 0 || o.documentBytes < 1:
		return errors.New("--parallel, --max-tokens and --document-bytes must be at least 1, --queue and --context not negative")
	case o.queueTime < 0 || o.grace < 0:
		return errors.New("--queue-time and --grace must not be negative")
	}
	if o.name == "" {
		o.name = strings.TrimSuffix(filepath.Base(filepath.Clean(o.model)), ".gguf")
	}
	return nil
}

func defaultFolder() string {
	folder, err := os.UserCacheDir()
	if err != nil {
		folder = "."
	}
	return filepath.Join(folder, "waveinfer-documents")
}

// bytesTo understands 1048576, 512M and 8G.
func bytesTo(to *int64) func(string) error {
	return func(text string) error {
		digits, shift := text, 0
		for i, unit := range []string{"K", "M", "G"} {
			if number, found := strings.CutSuffix(text, unit); found {
				digits, shift = number, 10*(i+1)
			}
		}
		bytes, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || bytes < 1 || bytes > 1<<62>>shift {
			return fmt.Errorf("%q is no number of bytes, such as 1048576, 512M or 8G", text)
		}
		*to = bytes << shift
		return nil
	}
}
