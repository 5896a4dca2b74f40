package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"
)

// endpoint answers requests for a path: errors become problems, and all are counted.
func (s *service) endpoint(path string, answer func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start, recorded := time.Now(), &recorder{ResponseWriter: w}
		defer func() {
			if panicked := recover(); panicked != nil {
				slog.Error("a request panicked", "path", path, "panic", panicked, "stack", string(debug.Stack()))
				recorded.fail(problemOf(fmt.Errorf("a bug: %v", panicked)))
			}
			s.metrics.request(path, recorded.status, time.Since(start))
			slog.Debug("request", "method", r.Method, "path", r.URL.Path, "status", recorded.status, "took", time.Since(start))
		}()
		err := s.mayAsk(r)
		if err == nil {
			err = answer(recorded, r)
		}
		if err != nil {
			recorded.fail(problemOf(err))
		}
	})
}

// mayAsk refuses what another site's page has a browser send, and everything that is late.
func (s *service) mayAsk(r *http.Request) error {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		if r.Method != http.MethodGet {
			return newProblem(http.StatusForbidden, "invalid_request_error", "", "cross_origin", "requests of other sites' pages are refused")
		}
	}
	if s.stopping.Load() && r.URL.Path != "/metrics" {
		return errStopping
	}
	return nil
}

// recorder knows which status was sent. 0: none yet.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(data []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(data)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) fail(p *problem) {
	if r.status != 0 {
		return // too late to say
	}
	if p.status == http.StatusInternalServerError {
		slog.Error("a request failed", "status", p.status, "error", p.Message)
	}
	if p.status == statusClientGone {
		r.status = p.status
		return
	}
	writeProblem(r, p)
}
