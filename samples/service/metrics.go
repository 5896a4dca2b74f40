package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"waveinfer"
)

// metrics are what /metrics tells Prometheus.
type metrics struct {
	promptTokens, cachedTokens, answerTokens atomic.Int64
	kvBytesRead, decodeSteps                 atomic.Int64

	mu         sync.Mutex
	requests   map[string]int64 // by labels
	duration   histogram        // of requests that were answered
	firstToken histogram
	coverage   histogram
}

func newMetrics() *metrics {
	seconds := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	return &metrics{
		requests: map[string]int64{}, duration: newHistogram(seconds), firstToken: newHistogram(seconds),
		coverage: newHistogram([]float64{.5, .6, .7, .8, .85, .9, .95, .97, .99, 1}),
	}
}

// request counts one that has ended.
func (m *metrics) request(path string, status int, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[fmt.Sprintf(`path=%q,status="%d"`, path, status)]++
	if status/100 == 2 && strings.HasPrefix(path, "/v1/") {
		m.duration.add(took.Seconds())
	}
}

// answered counts an answer that has ended, whichever way.
func (m *metrics) answered(a *answer, stats *waveinfer.SessionStats) {
	m.promptTokens.Add(int64(a.read))
	m.cachedTokens.Add(int64(a.cached))
	m.answerTokens.Add(int64(a.written))
	m.kvBytesRead.Add(int64(stats.KVBytesRead))
	m.decodeSteps.Add(int64(stats.DecodeSteps))
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.written > 0 {
		m.firstToken.add(a.first.Seconds())
	}
	if stats.DecodeSteps > 0 {
		m.coverage.add(stats.EstimatedCoverage)
	}
}

// histogram counts values up to each of its bounds.
type histogram struct {
	bounds []float64
	counts []int64 // of values between a bound and the one before; the last: above all of them
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]int64, len(bounds)+1)}
}

func (h *histogram) add(value float64) {
	at, _ := slices.BinarySearch(h.bounds, value)
	h.counts[at]++
	h.sum += value
}

func (h *histogram) write(w io.Writer, name, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %[1]s histogram\n", name, help)
	total := int64(0)
	for i, bound := range h.bounds {
		total += h.counts[i]
		fmt.Fprintf(w, "%s_bucket{le=\"%g\"} %d\n", name, bound, total)
	}
	total += h.counts[len(h.bounds)]
	fmt.Fprintf(w, "%s_bucket{le=\"+Inf\"} %d\n%[1]s_sum %[3]g\n%[1]s_count %[2]d\n", name, total, h.sum)
}

// writeMetrics is GET /metrics.
func (s *service) writeMetrics(w http.ResponseWriter, r *http.Request) error {
	stats, err := s.engine.runtime.Stats()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	m := s.metrics
	one := func(kind, name, help string, value any) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %[1]s %[3]s\n%[1]s %[4]v\n", name, help, kind, value)
	}
	held, loaded := s.library.held()
	disk, unsaved := s.library.onDisk()
	one("gauge", "waveinfer_requests_running", "Requests that the engine works on.", s.engine.gate.running())
	one("gauge", "waveinfer_requests_waiting", "Requests that wait for that.", s.engine.gate.waiting.Load())
	one("counter", "waveinfer_prompt_tokens_total", "Tokens of prompts and documents that were read.", m.promptTokens.Load())
	one("counter", "waveinfer_cached_tokens_total", "Tokens of prompts that had been read before, as documents.", m.cachedTokens.Load())
	one("counter", "waveinfer_answer_tokens_total", "Tokens that were written.", m.answerTokens.Load())
	one("counter", "waveinfer_decode_steps_total", "Decode steps of all answers.", m.decodeSteps.Load())
	one("counter", "waveinfer_kv_read_bytes_total", "Bytes of keys, values and index that decode steps read.", m.kvBytesRead.Load())
	one("gauge", "waveinfer_kv_bytes", "Bytes of keys, values and index in memory.", stats.KVBytes)
	one("gauge", "waveinfer_kv_budget_bytes", "Bytes that these may take.", stats.KVBudgetBytes)
	one("gauge", "waveinfer_scratch_bytes", "Bytes of the engine's workspaces.", stats.ScratchBytes)
	one("gauge", "waveinfer_slow_bytes", "Bytes of keys and values in the slow tier.", stats.SlowBytes)
	one("gauge", "waveinfer_sessions", "Sessions that are alive.", stats.Sessions)
	one("gauge", "waveinfer_documents", "Documents.", len(s.library.all()))
	one("gauge", "waveinfer_documents_loaded", "Documents in memory.", loaded)
	one("gauge", "waveinfer_documents_loaded_bytes", "Bytes of their keys, values and index.", held)
	one("gauge", "waveinfer_documents_unsaved", "Documents that are not saved, or not yet: they stay in memory.", unsaved)
	one("gauge", "waveinfer_documents_disk_bytes", "Bytes of the files of all documents.", disk)
	one("gauge", "process_resident_memory_bytes", "Resident memory of the process.", residentBytes())
	m.write(w)
	return nil
}

func (m *metrics) write(w io.Writer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.duration.write(w, "waveinfer_request_seconds", "Time of requests that were answered.")
	m.firstToken.write(w, "waveinfer_first_token_seconds", "Time to the first token, from when a request was let through.")
	m.coverage.write(w, "waveinfer_coverage", "Estimated share of an answer's attention that was read exactly.")
	fmt.Fprintf(w, "# HELP waveinfer_requests_total Requests by what was asked for and how it ended.\n# TYPE waveinfer_requests_total counter\n")
	labels := make([]string, 0, len(m.requests))
	for label := range m.requests {
		labels = append(labels, label)
	}
	slices.Sort(labels)
	for _, label := range labels {
		fmt.Fprintf(w, "waveinfer_requests_total{%s} %d\n", label, m.requests[label])
	}
}

// residentBytes is the memory that this process has now; 0 where the system does not say.
func residentBytes() int {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.Atoi(fields[1])
	return pages * os.Getpagesize()
}
