package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	options, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(options)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
}

// run serves until a signal comes; a second one ends the process at once.
func run(options options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	slog.SetLogLoggerLevel(options.log)
	// Before anything else: who gets no address has opened no model and no documents. Clients wait until it is served.
	listener, err := net.Listen("tcp", options.listen)
	if err != nil {
		return err
	}
	service, err := newService(ctx, options)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := service.server()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	slog.Info("serving", "model", service.engine.id, "at", "http://"+listener.Addr().String())

	select {
	case err = <-failed: // without having been asked to
	case <-ctx.Done():
		stop()
		slog.Info("shutting down", "requests", service.engine.gate.running(), "at most", options.grace)
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, service.shutdown(server))
}
