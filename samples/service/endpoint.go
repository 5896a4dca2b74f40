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
		start, body := time.Now(), s.bodies.count(path, r.Body)
		r.Body = body
		defer body.giveBack()
		recorded := &recorder{ResponseWriter: w, control: http.NewResponseController(w), body: body}
		recorded.control.SetWriteDeadline(time.Time{}) // that of the connection's request before
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

// mayAsk refuses what another site's page has a browser send, and everything that is late. A page whose own name has
// come to mean this machine is of the same site to the browser, but says that name. A request of HTTP/1.0 may say none, as
// a load balancer's do and no browser's; how the service is anybody may know.
func (s *service) mayAsk(r *http.Request) error {
	local, is := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if is && local.IP.IsLoopback() && r.Host != "" && r.URL.Path != "/healthz" && !s.isOurs(r.Host) {
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

// recorder knows which status was sent, and has clients take what they are sent in time.
type recorder struct {
	http.ResponseWriter
	control *http.ResponseController
	body    *countedBody
	status  int // 0: none yet
}

func (r *recorder) WriteHeader(status int) {
	r.begin(status)
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(data []byte) (int, error) {
	if r.status == 0 {
		r.begin(http.StatusOK)
	}
	r.control.SetWriteDeadline(time.Now().Add(writeTime))
	return r.ResponseWriter.Write(data)
}

// How long a client may take to take what it is sent, and to send what nobody wants of it any more. Tests have less
// patience.
const writeTime = 30 * time.Second

var restTime = 5 * time.Second

// begin comes before all that is sent. The server reads what it can of a body that nobody has read before it answers.
func (r *recorder) begin(status int) {
	r.status = status
	r.control.SetWriteDeadline(time.Now().Add(writeTime))
	if !r.body.ended {
		r.control.SetReadDeadline(time.Now().Add(restTime))
	}
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
		r.begin(p.status)
		return
	}
	writeProblem(r, p)
}
