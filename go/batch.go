package waveinfer

// #include "callback.h"
import "C"

import (
	"context"
	"runtime"
	"slices"
	"strconv"
)

// DecodeBatch makes one [Session.Decode] for each of many sessions of one model in one step, so that weights
// are read once for all of them. Every session gets the token that it would have got alone; events are in the
// order of sessions, each of which may be given once.
//
// Errors: as Decode, for the batch as a whole: if one session fails, no session changes, and the message
// begins with which one, as "sessions[3]: ".
func DecodeBatch(ctx context.Context, sessions []*Session) ([]Event, error) {
	if len(sessions) == 0 {
		return nil, nil
	}
	sessions = slices.Clone(sessions) // what is entered is left
	entered := 0
	leave := func() {
		for _, s := range sessions[:entered] {
			defer s.handle.leaveAlone()
		}
	}
	objects := make([]*C.wi_session, len(sessions))
	hooked := false
	for i, s := range sessions {
		if err := enterOne(sessions, i); err != nil {
			leave()
			return nil, err
		}
		entered++
		objects[i] = s.handle.object
		hooked = hooked || s.uses.calls.Load()
	}
	c, err := newCall(ctx, leave)
	if err != nil {
		return nil, err
	}
	defer c.end()
	out := make([]C.wi_event, len(sessions))
	for i := range out {
		out[i].struct_size = C.sizeof_wi_event
	}
	decode := func() C.wi_status {
		return C.wi_batch_decode(&objects[0], C.uint64_t(len(objects)), c.token(), &out[0], &c.error)
	}
	var status C.wi_status
	if hooked {
		status = c.serve(decode)
		runtime.KeepAlive(sessions) // and so their callbacks
	} else {
		status = decode()
	}
	if err := c.check(status); err != nil {
		return nil, err
	}
	events := make([]Event, len(out))
	for i := range out {
		events[i] = eventOf(&out[i])
	}
	return events, nil
}

// enterOne enters a session of a batch.
func enterOne(sessions []*Session, i int) error {
	name := "sessions[" + strconv.Itoa(i) + "]"
	if sessions[i] == nil {
		return argumentError("%s is nil", name)
	}
	if before := slices.Index(sessions[:i], sessions[i]); before >= 0 {
		return argumentError("%s is the same session as sessions[%d]", name, before)
	}
	err := sessions[i].handle.enterAlone()
	if failure, ok := err.(*Error); ok {
		failure.Message = name + ": " + failure.Message
	}
	return err
}
