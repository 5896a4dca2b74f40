package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// server is an HTTP server whose requests end with the service. There is no limit on how long an answer takes:
// each read and each write has one of its own.
func (s *service) server() *http.Server {
	return &http.Server{
		Handler:           s.handler(),
		BaseContext:       func(net.Listener) context.Context { return s.base },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
	}
}

// How long requests that have been ended may take to say so, and documents to be saved.
const (
	endTime  = 5 * time.Second
	saveTime = 2 * time.Minute
)

// shutdown takes no new requests, lets running ones end, for so long as there is grace, ends the others, and
// saves documents.
func (s *service) shutdown(server *http.Server) error {
	s.stopping.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), s.grace)
	defer cancel()
	late := server.Shutdown(ctx)
	s.end(errStopping)
	if late != nil {
		slog.Warn("requests are ended", "running", s.engine.gate.running())
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		late = server.Shutdown(ctx)
	}
	if errors.Is(late, context.DeadlineExceeded) {
		server.Close()
	}
	saving, cancel := context.WithTimeout(context.Background(), saveTime)
	defer cancel()
	return s.close(saving)
}

// close saves documents and gives everything back.
func (s *service) close(ctx context.Context) error {
	s.stopping.Store(true)
	s.end(errStopping)
	err := s.library.close(ctx)
	s.engine.close()
	return err
}
