package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
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
			body := &countedBody{ReadCloser: r.Body, of: &s.bodies}
			defer body.giveBack()
			r.Body = body
			err = answer(recorded, r)
		}
		if err != nil {
			recorded.fail(problemOf(err))
		}
	})
}

// mayAsk refuses what another site's page has a browser send, and everything that is late. A page whose own name has
// come to mean this machine is of the same site to the browser, but says that name.
func (s *service) mayAsk(r *http.Request) error {
	if local, is := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); is && local.IP.IsLoopback() && !s.isOurs(r.Host) {
		return newProblem(http.StatusForbidden, "invalid_request_error", "", "unknown_host",
			fmt.Sprintf("the service is not called %q; --host can say that it is", r.Host))
	}
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

// isOurs tells whether a request's Host means this machine, or is one of --host.
func (s *service) isOurs(host string) bool {
	name := host
	if alone, _, err := net.SplitHostPort(host); err == nil {
		name = alone
	}
	name = strings.Trim(name, "[]")
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback() ||
		slices.ContainsFunc(s.hosts, func(known string) bool { return strings.EqualFold(known, name) })
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
