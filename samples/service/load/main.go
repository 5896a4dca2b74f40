// Load is many clients of a service at once, for a while: chats and completions, streamed or not, questions
// about documents that are read and deleted meanwhile, and clients that go away in the middle.
//
//	load --at http://127.0.0.1:8080 --model needle-f16 --clients 50 --time 5m
//
// It fails if an answer is wrong, if there is an error that is not 429, or if the service's memory grows: the most of
// its resident memory in the last third of the time over that in the second by more than --growth, its sessions and its
// KV cache at all once nobody asks any more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"
)

func main() {
	log.SetFlags(0)
	at := flag.String("at", "http://127.0.0.1:8080", "`address` of the service")
	model := flag.String("model", "needle-f16", "`name` of its model")
	clients := flag.Int("clients", 50, "`number` of clients")
	during := flag.Duration("time", 5*time.Minute, "how long")
	growth := flag.Int("growth", 16, "most `MiB` that resident memory may grow by")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the random numbers")
	flag.Parse()
	fmt.Printf("load: seed %d\n", *seed)
	l := &load{at: *at, model: *model, random: rand.New(rand.NewPCG(*seed, 0)), counts: map[string]int{}}
	if err := l.run(*clients, *during, *growth); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

// run has the clients at it and looks at memory.
func (l *load) run(clients int, during time.Duration, growth int) error {
	ctx, cancel := context.WithTimeout(context.Background(), during)
	defer cancel()
	if err := l.readDocuments(3); err != nil {
		return err
	}
	idle, err := l.settled() // their saving takes a moment
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for i := range clients {
		all.Add(1)
		go func() {
			defer all.Done()
			l.client(ctx, rand.New(rand.NewPCG(l.random64(), uint64(i))))
		}()
	}
	memory := []float64{idle[resident]} // before, and after each tenth of the time
	for range 10 {
		time.Sleep(during / 10)
		now, err := l.metrics()
		if err != nil {
			return err
		}
		memory = append(memory, now[resident])
	}
	all.Wait()
	l.report(clients, during, memory)
	end, err := l.settled()
	if err != nil {
		return err
	}
	if end[kvBytes] != idle[kvBytes] {
		return fmt.Errorf("%.0f bytes of KV cache are left, %.0f were there before", end[kvBytes], idle[kvBytes])
	}
	// In the first third workspaces and pools, and what the allocator keeps of its arenas, come to their size.
	if grown := (slices.Max(memory[7:]) - slices.Max(memory[4:7])) / (1 << 20); grown > float64(growth) {
		return fmt.Errorf("resident memory has grown by %.0f MiB", grown)
	}
	return l.failure()
}

// Of the service's metrics.
const (
	resident  = "process_resident_memory_bytes"
	kvBytes   = "waveinfer_kv_bytes"
	sessions  = "waveinfer_sessions"
	documents = "waveinfer_documents_loaded"
)

// settled is the metrics when there are no sessions but those of documents.
func (l *load) settled() (map[string]float64, error) {
	for range 100 {
		now, err := l.metrics()
		if err != nil {
			return nil, err
		}
		if now[sessions] == now[documents] {
			return now, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, errors.New("after ten seconds sessions are left that are no documents'")
}
