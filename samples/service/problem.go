package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"waveinfer"
)

// problem is an error as OpenAI's API words it: clients know what to do by its status, and people by its text.
type problem struct {
	status     int
	retryAfter time.Duration // 0: trying again does not help, or nobody knows when

	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"` // the field of the request that it is about
	Code    *string `json:"code"`
}

func (p *problem) Error() string { return p.Message }

// statusClientGone is nginx's: nobody reads it, but it is counted.
const statusClientGone = 499

// errStopping is why requests end that are not done when the service has to stop.
var errStopping = errors.New("the service is shutting down")

// badRequest is a problem with a field of the request.
func badRequest(param, code, format string, values ...any) *problem {
	return newProblem(http.StatusBadRequest, "invalid_request_error", param, code, fmt.Sprintf(format, values...))
}

func tooBusy(retryAfter time.Duration, code, message string) *problem {
	p := newProblem(http.StatusTooManyRequests, "rate_limit_error", "", code, message)
	p.retryAfter = retryAfter
	return p
}

func newProblem(status int, kind, param, code, message string) *problem {
	return &problem{status: status, Message: message, Type: kind, Param: orNull(param), Code: orNull(code)}
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// problemOf is any error as a problem.
func problemOf(err error) *problem {
	var known *problem
	var large *http.MaxBytesError
	is := func(targets ...error) bool { return isAny(err, targets...) }
	switch {
	case errors.As(err, &known):
		return known
	case is(errStopping):
		p := newProblem(http.StatusServiceUnavailable, "server_error", "", "shutting_down", errStopping.Error())
		p.retryAfter = 5 * time.Second
		return p
	case errors.As(err, &large):
		return newProblem(http.StatusRequestEntityTooLarge, "invalid_request_error", "", "request_too_large",
			fmt.Sprintf("the request is longer than %d bytes", large.Limit))
	case is(waveinfer.ErrBudget, waveinfer.ErrMemory):
		return tooBusy(5*time.Second, "out_of_memory", err.Error())
	case is(waveinfer.ErrCancelled, context.Canceled):
		return newProblem(statusClientGone, "server_error", "", "cancelled", "the request was cancelled")
	case is(waveinfer.ErrArgument, waveinfer.ErrUnsupported), is(waveinfer.ErrState) && !is(waveinfer.ErrClosed):
		return badRequest("", "", "%s", err.Error())
	}
	return newProblem(http.StatusInternalServerError, "server_error", "", "internal_error", err.Error())
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// writeProblem answers a request with a problem instead of what was asked for.
func writeProblem(w http.ResponseWriter, p *problem) {
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
	}
	writeJSON(w, p.status, map[string]*problem{"error": p})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		body, status = []byte(`{"error":{"message":"the answer is no JSON","type":"server_error"}}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(body, '\n'))
}
