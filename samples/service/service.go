package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// service is the engine, the documents, and what is asked of them over HTTP.
type service struct {
	engine        *engine
	library       *library
	metrics       *metrics
	documentBytes int64 // most, of a document
	requestBytes  int64 // and of any other request
	bodies        bodies
	hosts         []string // names besides this machine's own
	grace         time.Duration

	stopping atomic.Bool
	base     context.Context // of all requests
	end      context.CancelCauseFunc
}

// A request has room for as many tokens as the model takes, each with more bytes than tokens have but for rare ones, and
// for what else it says.
const (
	bytesPerToken = 64
	leastRequest  = 1 << 20
)

const documentsPath = "/v1/documents"

// newService opens the model and finds the documents. ctx may end that.
func newService(ctx context.Context, o options) (*service, error) {
	s := &service{metrics: newMetrics(), documentBytes: o.documentBytes, hosts: o.hosts, grace: o.grace}
	s.bodies.share(bodiesOf * o.documentBytes)
	s.base, s.end = context.WithCancelCause(context.Background())
	var err error
	if s.engine, err = openEngine(ctx, o, s.metrics); err != nil {
		return nil, err
	}
	s.requestBytes = min(o.documentBytes, max(leastRequest, bytesPerToken*int64(s.engine.context)))
	if s.library, err = openLibrary(s.base, s.engine, o); err != nil {
		s.engine.close()
		return nil, err
	}
	return s, nil
}

// handler is what is answered where.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	routes := []struct {
		method, path string
		answer       func(http.ResponseWriter, *http.Request) error
	}{
		{"POST", "/v1/chat/completions", s.chat},
		{"POST", "/v1/completions", s.completions},
		{"GET", "/v1/models", s.models},
		{"GET", "/v1/models/{id}", s.oneModel},
		{"POST", documentsPath, s.readDocument},
		{"GET", documentsPath, s.listDocuments},
		{"GET", "/v1/documents/{id}", s.oneDocument},
		{"DELETE", "/v1/documents/{id}", s.deleteDocument},
		{"POST", "/v1/documents/{id}/ask", s.ask},
		{"GET", "/metrics", s.writeMetrics},
		{"GET", "/healthz", s.health},
		{"GET", "/{$}", s.page},
	}
	methods := map[string][]string{}
	for _, route := range routes {
		mux.Handle(route.method+" "+route.path, s.endpoint(route.path, route.answer))
		methods[route.path] = append(methods[route.path], route.method)
	}
	for path, allowed := range methods {
		mux.Handle(path, s.endpoint(path, wrongMethod(strings.Join(allowed, ", "))))
	}
	mux.Handle("/", s.endpoint("other", notFound))
	return mux
}

func wrongMethod(allowed string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Allow", allowed)
		return newProblem(http.StatusMethodNotAllowed, "invalid_request_error", "", "method_not_allowed",
			fmt.Sprintf("%s takes %s, not %s", r.URL.Path, allowed, r.Method))
	}
}

func notFound(w http.ResponseWriter, r *http.Request) error {
	return newProblem(http.StatusNotFound, "invalid_request_error", "", "not_found", "there is nothing at "+r.URL.Path)
}

// health is GET /healthz: 200 while requests are welcome.
func (s *service) health(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.engine.runtime.Stats(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	return nil
}
