package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"waveinfer"
)

const (
	modelPath = "../../samples/model/needle-f16.gguf"
	text      = "In the beginning God created the heaven and the earth."
	longest   = 128 // tokens of an answer, from which on it begins anew
)

// BenchmarkDecode decodes the same answer in C, by bare calls of cgo's and through the binding, in turns. Of each step it
// takes the time that the session's own statistics do not count: what is between a program and the step. It reports
// medians: of a whole step in C, of what is outside in C, and how much more that is with cgo alone and in Go.
func BenchmarkDecode(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.Run("background", func(b *testing.B) { compare(b, decode(context.Background())) })
	b.Run("cancellable", func(b *testing.B) { compare(b, decode(ctx)) })
	b.Run("Events", func(b *testing.B) { compare(b, events(ctx)) })
}

// steps decodes so many tokens and tells of each what it took.
type steps func(s *waveinfer.Session, tokens int, each func(took time.Duration)) error

func decode(ctx context.Context) steps {
	return func(s *waveinfer.Session, tokens int, each func(took time.Duration)) error {
		for range tokens {
			start := time.Now()
			if _, err := s.Decode(ctx); err != nil {
				return err
			}
			each(time.Since(start))
		}
		return nil
	}
}

func events(ctx context.Context) steps {
	return func(s *waveinfer.Session, tokens int, each func(took time.Duration)) error {
		for done := 0; done < tokens; { // an answer may end
			start := time.Now()
			for _, err := range s.Events(ctx) {
				if err != nil {
					return err
				}
				each(time.Since(start))
				if done++; done == tokens {
					break
				}
				start = time.Now()
			}
		}
		return nil
	}
}

func compare(b *testing.B, run steps) {
	c, err := Open(modelPath, text)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	r, err := waveinfer.NewRuntime(&waveinfer.RuntimeParams{Threads: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	model, err := r.Open(context.Background(), modelPath, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()
	if err := session.AppendText(context.Background(), text, 0, nil); err != nil {
		b.Fatal(err)
	}
	read, err := session.Tokens()
	if err != nil {
		b.Fatal(err)
	}

	took, outside := make([]time.Duration, longest), make([]time.Duration, longest)
	var inC, outsideC, outsideCgo, outsideGo []time.Duration
	b.ResetTimer()
	for len(inC) < b.N {
		c.Truncate(len(read))
		if err := c.Decode(took, outside); err != nil {
			b.Fatal(err)
		}
		inC, outsideC = append(inC, took...), append(outsideC, outside...)
		c.Truncate(len(read))
		for range longest {
			outside, err := c.Step()
			if err != nil {
				b.Fatal(err)
			}
			outsideCgo = append(outsideCgo, outside)
		}
		if err := session.Truncate(len(read)); err != nil {
			b.Fatal(err)
		}
		before := counted(b, session)
		err := run(session, longest, func(took time.Duration) {
			after := counted(b, session)
			outsideGo = append(outsideGo, took-(after-before))
			before = after
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(median(inC)), "ns/step-in-C")
	b.ReportMetric(float64(median(outsideC)), "ns/outside-in-C")
	b.ReportMetric(float64(median(outsideCgo)-median(outsideC)), "ns/cgo-over-C")
	b.ReportMetric(float64(median(outsideGo)-median(outsideC)), "ns/over-C")
}

func counted(b *testing.B, s *waveinfer.Session) time.Duration {
	stats, err := s.Stats()
	if err != nil {
		b.Fatal(err)
	}
	return stats.DecodeTime
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// BenchmarkStats is about what a call costs that does next to nothing.
func BenchmarkStats(b *testing.B) {
	model, err := waveinfer.Open(context.Background(), modelPath, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := session.Stats(); err != nil {
			b.Fatal(err)
		}
	}
}
