package main

import (
	"context"
	"math"
	"sync/atomic"
	"time"
)

// gate lets so many requests through to the engine at a time, so many more wait, in order, and the rest are
// turned away: a request that would wait for long is better off with another server, or later.
type gate struct {
	slots     chan struct{} // has one element for each request inside
	waiting   atomic.Int64
	most      int64
	queueTime time.Duration
	mean      atomic.Uint64 // seconds that a request is inside, of the latest ones: the bits of a float64
}

func newGate(parallel, queue int, queueTime time.Duration) *gate {
	return &gate{slots: make(chan struct{}, parallel), most: int64(queue), queueTime: queueTime}
}

// enter waits for its turn. leave must follow unless it fails.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g.slots <- struct{}{}:
	default:
		if err := g.wait(ctx); err != nil {
			return nil, err
		}
	}
	entered := time.Now()
	return func() {
		g.remember(time.Since(entered))
		<-g.slots
	}, nil
}

func (g *gate) wait(ctx context.Context) error {
	defer g.waiting.Add(-1)
	if g.waiting.Add(1) > g.most {
		return tooBusy(g.expected(), "queue_full", "too many requests are waiting; try again later")
	}
	late := time.NewTimer(g.queueTime)
	defer late.Stop()
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-late.C:
		return tooBusy(g.expected(), "queue_time", "the request has waited for too long; try again later")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// remember moves the mean by an eighth towards the latest time. Two at once may lose one: it is a guess.
func (g *gate) remember(took time.Duration) {
	mean := math.Float64frombits(g.mean.Load())
	g.mean.Store(math.Float64bits(mean + (took.Seconds()-mean)/8))
}

// expected is when whoever comes now might be served: when the requests that wait have gone through.
func (g *gate) expected() time.Duration {
	rounds := float64(g.waiting.Load()) / float64(cap(g.slots))
	seconds := math.Float64frombits(g.mean.Load()) * rounds
	return time.Duration(min(max(seconds, 1), 60) * float64(time.Second))
}

func (g *gate) running() int { return len(g.slots) }
