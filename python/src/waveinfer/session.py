"""A session: one token sequence with its KV cache and its sampler."""

from __future__ import annotations

import enum
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._abi import ffi
from ._calls import Cancel, Exclusive, Handle, Target, Turn, alone, call, call_async, on_progress
from ._library import lib
from ._streams import writer_struct
from ._values import (
    Arguments,
    Path,
    Text,
    Tokens,
    float_pointer,
    int32_pointer,
    path_bytes,
    read,
    result,
    token_array,
    tokenize_flags,
)
from .errors import ArgumentError, BusyError
from .params import Sampling, SessionOptions, sampling_struct, session_struct
from .stats import SessionStats

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .runtime import Progress
    from .task import Task

# A step that follows one of so long is made beside the main thread, so that Ctrl-C need not wait for its end;
# shorter ones are over before anybody notices.
_SLOW_NS = 20_000_000


class EventKind(enum.IntEnum):
    """What an event is. Kinds that are unknown here (UNKNOWN_n) end an answer too."""

    TOKEN = 0
    """A token of the answer, which goes on."""
    END = 1
    """The token ends the answer; text is what was held back."""
    STOP = 2
    """The token completes a stop text; text is what was held back before it."""
    LIMIT = 16
    """Of tasks: max_tokens were written. No token."""
    CANCELLED = 17
    """Of tasks: it was cancelled. No token."""
    FAILED = 18
    """Of tasks: it failed. No token."""

    @classmethod
    def _missing_(cls, value: object) -> EventKind | None:
        if not isinstance(value, int):
            return None
        kind = int.__new__(cls, value)
        kind._name_, kind._value_ = f"UNKNOWN_{value}", value
        return kind


class TokenLogprob(NamedTuple):
    """One of the likeliest tokens."""

    token: int
    """Its id."""
    logprob: float
    """As in `Event`."""


class Event(NamedTuple):
    """A token that was appended, or the end of a task."""

    kind: EventKind
    """TOKEN while the answer goes on."""
    token: int
    """Its id, in [0, vocab); -1: an event without a token."""
    text: str
    """What it adds to the text: whole code points, nothing while one is incomplete."""
    logprob: float
    """Natural logarithm of its probability under the model itself, before bias, penalty and cuts."""
    top: tuple[TokenLogprob, ...]
    """The likeliest tokens, best first, as many as Sampling.top_logprobs asks for."""


class _Kinds(dict[int, EventKind]):
    def __missing__(self, number: int) -> EventKind:
        return EventKind(number)


_kinds = _Kinds({int(kind): kind for kind in EventKind})


def event_of(event: Any) -> Event:
    """A wi_event's values, its text copied: the next call on its session overwrites it."""
    length, count = event.text_length, event.top_count
    return Event(
        _kinds[event.kind],
        event.token,
        ffi.unpack(event.text, length).decode() if length else "",
        event.logprob,
        tuple(TokenLogprob(each.token, each.logprob) for each in event.top[0:count]) if count else (),
    )


class Session(Exclusive):
    """One token sequence with its KV cache and its sampler; made by `Model.session`, `Model.load` or `fork`.

    One thread at a time, not always the same one: a call that finds another one inside raises `BusyError` and
    changes nothing; so does one while a task works on the session. `stats` and `close` work at any time.
    A call that fails or is cancelled leaves the session as it was.
    """

    def __init__(self, handle: Handle, vocab: int) -> None:
        super().__init__(handle)
        self._vocab = vocab
        self._event = result("wi_event")
        self._slow = False

    def prefill(
        self,
        tokens: Tokens,
        *,
        chunk_tokens: int = 0,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        """Appends tokens and computes their keys and values, in chunks of chunk_tokens (0: chosen).

        tokens: ids in [0, vocab)
        progress: tokens done, tokens in this call; after each chunk, and at least every 250 ms within one, with
            the same numbers again. While a text is tokenised: 0, and the text's bytes
        Errors: UnsupportedError for keys or values beyond the KV type, and for a session longer than max_positions
        where that is enforced; BudgetError, CancelledError, BusyError; of the slow tier FileError, if its disk
        fails, and FormatError, if the file that the session was loaded from was damaged meanwhile.
        """
        self._prefill(token_array(tokens), chunk_tokens, progress, cancel, None)

    def prefill_logits(
        self,
        tokens: Tokens,
        *,
        chunk_tokens: int = 0,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> NDArray[np.float32]:
        """As `prefill`; returns the logits of every token given, (tokens, vocab) f32."""
        ids = token_array(tokens)
        logits = np.empty((ids.size, self._vocab), np.float32)
        self._prefill(ids, chunk_tokens, progress, cancel, logits)
        return logits

    @alone
    def _prefill(
        self,
        ids: NDArray[np.int32],
        chunk_tokens: int,
        progress: Progress | None,
        cancel: Cancel | None,
        logits: NDArray[np.float32] | None,
    ) -> None:
        session, arguments, data = self._use(), Arguments(), int32_pointer(ids)
        params = _prefill_struct(arguments, chunk_tokens, progress)
        if logits is not None and logits.size:
            params.logits = arguments.keep(float_pointer(logits, writable=True))
            params.logits_capacity = logits.size
        call(
            lambda token, error: lib.wi_session_prefill(
                session.cell[0], data, ids.size, params, token, error
            ),
            cancel,
            long=True,
        )

    @alone
    def append_text(
        self,
        text: Text,
        *,
        add_bos: bool = False,
        parse_special: bool = False,
        chunk_tokens: int = 0,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        """Tokenises and prefills: see `Model.tokenize` and `prefill`."""
        session, arguments = self._use(), Arguments()
        data, length = arguments.text(text)
        params = _prefill_struct(arguments, chunk_tokens, progress)
        flags = tokenize_flags(add_bos, parse_special)
        call(
            lambda token, error: lib.wi_session_append_text(
                session.cell[0], data, length, flags, params, token, error
            ),
            cancel,
            long=True,
        )

    @alone
    def decode(self, *, cancel: Cancel | None = None) -> Event:
        """Appends one token, sampled from the logits of the last one. Its own keys and values are computed by
        the next call that needs them. After the end of an answer the session may go on.

        Errors: StateError if the session is empty or nothing is left to sample; UnsupportedError, BudgetError,
        CancelledError, BusyError, FileError and FormatError, as `prefill`; no token is lost and none is added.
        Where a signal handler raises as a step ends, the token may be there, in `tokens`, without its event.
        """
        session = self._use()
        return self._step(
            lambda token, error: lib.wi_session_decode(session.cell[0], token, self._event, error), cancel
        )

    @alone
    def accept(self, token: int, *, cancel: Cancel | None = None) -> Event:
        """Appends one token that the host chose, exactly as `decode` appends one that it sampled. With `logits`
        this is decode with a sampler of one's own, at the cost of decode. Errors: as `decode`.
        """
        session, chosen = self._use(), token
        return self._step(
            lambda token, error: lib.wi_session_accept(session.cell[0], chosen, token, self._event, error),
            cancel,
        )

    def _step(self, function: Callable[[Any, Any], int], cancel: Cancel | None) -> Event:
        started = time.perf_counter_ns()
        call(function, cancel, self._slow)
        self._slow = time.perf_counter_ns() - started > _SLOW_NS
        return event_of(self._event)

    def stream(self, max_tokens: int | None = None, *, cancel: Cancel | None = None) -> Iterator[Event]:
        """Decodes until the answer ends, or has max_tokens tokens (0: none; None: no limit): an iterator over
        its events, the one that ends it included. It goes on only as events are asked for. Errors: as `decode`.
        """
        if max_tokens is not None and max_tokens < 0:
            raise ArgumentError(f"max_tokens is {max_tokens}")
        return self._stream(max_tokens, cancel)

    def _stream(self, max_tokens: int | None, cancel: Cancel | None) -> Iterator[Event]:
        written = 0
        while max_tokens is None or written < max_tokens:
            event = self.decode(cancel=cancel)
            yield event
            if event.kind != EventKind.TOKEN:
                return
            written += 1

    @alone
    def logits(self, *, cancel: Cancel | None = None) -> NDArray[np.float32]:
        """Logits of the last token, (vocab) f32, those that `decode` would sample from; computes them first if
        they are pending. Errors: as `decode`.
        """
        session, count = self._use(), ffi.new("uint64_t*")
        logits = np.empty(self._vocab, np.float32)
        to = float_pointer(logits, writable=True)
        call(
            lambda token, error: lib.wi_session_logits(session.cell[0], token, to, logits.size, count, error),
            cancel,
            self._slow,
        )
        return logits

    @alone
    def tokens(self) -> NDArray[np.int32]:
        """The ids of all tokens, (tokens), the pending one included. Errors: BusyError."""
        session, count = self._use(), ffi.new("uint64_t*")
        call(lambda _, error: lib.wi_session_tokens(session.cell[0], ffi.NULL, 0, count, error))
        ids = np.empty(count[0], np.int32)
        to = int32_pointer(ids, writable=True)
        call(lambda _, error: lib.wi_session_tokens(session.cell[0], to, ids.size, count, error))
        return ids

    @alone
    def fork(self) -> Session:
        """A second session that goes on from here on its own: same tokens, parameters, logits and sampler
        state. It shares what is sealed; takes microseconds. Errors: BusyError.
        """
        session = self._use()
        handle = Handle("wi_session", lib.wi_session_release, *session.keeps)
        call(lambda _, error: lib.wi_session_fork(session.cell[0], handle.cell, error), into=handle)
        return Session(handle, self._vocab)

    @alone
    def fork_as(self, *, cancel: Cancel | None = None, **options: Unpack[SessionOptions]) -> Session:
        """A fork under other parameters: the same tokens, keys, values and logits, read through another policy
        or budget, without computing the prompt again. Without sampling the sampler goes on where it is, and
        without kv_type it is the session's; what else is not given is the default, not the session's.

        Errors: ArgumentError if kv_type is another than the session's; UnsupportedError for an unknown policy;
        BudgetError, CancelledError, BusyError; FileError and FormatError of the slow tier, as `prefill`.
        """
        session, arguments = self._use(), Arguments()
        params, keeps = session_struct(arguments, options)
        kept = (session.keeps[0], keeps) if options.get("sampling") is not None else session.keeps
        handle = Handle("wi_session", lib.wi_session_release, *kept)
        call(
            lambda token, error: lib.wi_session_fork_as(session.cell[0], params, token, handle.cell, error),
            cancel,
            long=True,
            into=handle,
        )
        return Session(handle, self._vocab)

    @alone
    def truncate(self, tokens: int) -> None:
        """Cuts the session back to its first `tokens` tokens. Where a prefill ended it is as it was then, bit
        for bit; elsewhere the new last token's logits are computed by the next call that needs them.

        Errors: ArgumentError for more tokens than it has; BudgetError, OutOfMemoryError, BusyError; FileError and
        FormatError of the slow tier, as `prefill`.
        """
        session = self._use()
        call(lambda _, error: lib.wi_session_truncate(session.cell[0], tokens, error))

    @alone
    def save(self, path: Path, *, cancel: Cancel | None = None) -> None:
        """Writes the session to a file: tokens, KV, index, sampler, parameters; checksummed. The file appears
        whole or not at all. Errors: FileError, CancelledError, BusyError; FormatError if the file that the session
        was loaded from was damaged meanwhile.
        """
        session, name = self._use(), path_bytes(path)
        call(
            lambda token, error: lib.wi_session_save(session.cell[0], name, token, error),
            cancel,
            long=True,
        )

    @alone
    def save_file(self, file: BinaryIO, *, cancel: Cancel | None = None) -> None:
        """The same bytes to a binary file object, in pieces of about 1 MiB. An exception of the file object
        ends the call and is raised by it. Errors: CancelledError, BusyError; FileError and FormatError of the slow
        tier, as `save`.
        """
        session, arguments = self._use(), Arguments()
        writer = writer_struct(arguments, file)
        call(
            lambda token, error: lib.wi_session_save_to(session.cell[0], writer, token, error),
            cancel,
            long=True,
        )

    @alone
    def saved_bytes(self) -> int:
        """Bytes that a save of the session as it is now takes. Errors: BusyError."""
        session, count = self._use(), ffi.new("uint64_t*")
        call(lambda _, error: lib.wi_session_saved_bytes(session.cell[0], count, error))
        return int(count[0])

    @alone
    def set_sampling(self, sampling: Sampling | None = None) -> None:
        """Replaces how tokens are picked and starts the random numbers anew from its seed; None: greedy.

        Errors: ArgumentError for a logit_bias of a token beyond the vocabulary; BusyError.
        """
        session, arguments = self._use(), Arguments()
        params, keeps = sampling_struct(arguments, sampling)
        call(lambda _, error: lib.wi_session_set_sampling(session.cell[0], params, error))
        session.keeps = (session.keeps[0], keeps)

    def stats(self) -> SessionStats:
        """What the session has done, as of the end of its last call. Any thread, also during a call."""
        session, stats = self._use(), result("wi_session_stats")
        call(lambda _, error: lib.wi_session_get_stats(session.cell[0], stats, error))
        return read(stats, SessionStats)

    @alone
    def submit(
        self,
        prompt: Text | Tokens | None = None,
        *,
        max_tokens: int | None = None,
        priority: int = 0,
        add_bos: bool = False,
        parse_special: bool = False,
        sampling: Sampling | None = None,
        notify: Callable[[], object] | None = None,
    ) -> Task:
        """Hands the session to the runtime, which reads the prompt and writes an answer beside the host's
        threads, together with all other tasks. Until the task has ended, calls on the session raise
        `BusyError`; then the answer is part of it.

        prompt: text, or token ids, or None, to go on from what the session has
        max_tokens: of the answer, at least 1; None: until it ends
        priority: -8 to 8, higher first; one more is twice the share of the time
        sampling: as `set_sampling` at the start; None: the session's goes on
        notify: called on the engine's thread when there are new events or the task has ended; it should only
            wake somebody. An exception of it cancels the task and is raised by it
        Errors: ArgumentError for a max_tokens of 0, as a task cannot write nothing; BusyError; StateError if
        the session is empty and there is no prompt. What goes wrong later is
        raised by the task. Any thread.
        """
        from .task import submit

        return submit(
            self,
            prompt,
            max_tokens=max_tokens,
            priority=priority,
            flags=tokenize_flags(add_bos, parse_special),
            sampling=sampling,
            notify=notify,
        )

    async def stream_async(
        self,
        prompt: Text | Tokens | None = None,
        *,
        max_tokens: int | None = None,
        priority: int = 0,
        add_bos: bool = False,
        parse_special: bool = False,
        sampling: Sampling | None = None,
    ) -> AsyncIterator[Event]:
        """Reads a prompt and writes an answer as a task: an asynchronous iterator over its events. Cancelling
        the asyncio task, or closing the iterator, cancels the native one and waits for its step to end.
        Parameters and errors: as `submit`.
        """
        with self.submit(
            prompt,
            max_tokens=max_tokens,
            priority=priority,
            add_bos=add_bos,
            parse_special=parse_special,
            sampling=sampling,
        ) as task:
            try:
                async for event in task:
                    yield event
            finally:
                await task.end_async()

    async def prefill_async(self, tokens: Tokens, *, chunk_tokens: int = 0) -> None:
        """As `prefill`, beside the event loop; cancelling the asyncio task ends the call."""
        await call_async(lambda cancel: self.prefill(tokens, chunk_tokens=chunk_tokens, cancel=cancel))

    async def append_text_async(
        self, text: Text, *, add_bos: bool = False, parse_special: bool = False
    ) -> None:
        """As `append_text`, beside the event loop; cancelling the asyncio task ends the call."""
        await call_async(
            lambda cancel: self.append_text(text, add_bos=add_bos, parse_special=parse_special, cancel=cancel)
        )

    async def save_async(self, path: Path) -> None:
        """As `save`, beside the event loop; cancelling the asyncio task ends the call."""
        await call_async(lambda cancel: self.save(path, cancel=cancel))

    async def fork_as_async(self, **options: Unpack[SessionOptions]) -> Session:
        """As `fork_as`, beside the event loop; cancelling the asyncio task ends the call."""
        return await call_async(lambda cancel: self.fork_as(cancel=cancel, **options))


def _prefill_struct(arguments: Arguments, chunk_tokens: int, progress: Progress | None) -> Any:
    params = arguments.struct("wi_prefill_params", chunk_tokens=chunk_tokens)
    if progress is not None:
        params.progress, params.progress_user = on_progress, arguments.keep(Target(progress)).user
    return params


def decode_batch(sessions: Sequence[Session], *, cancel: Cancel | None = None) -> list[Event]:
    """One `Session.decode` for each of many sessions of one model in one step, so that weights are read once
    for all of them. Every session gets the token that it would have got alone.

    Errors: as `Session.decode`, for the batch as a whole: if one session fails, no session changes, and the
    message begins with which one.
    """
    sessions = list(sessions)
    if len({id(session) for session in sessions}) < len(sessions):
        raise BusyError("a session is in the batch twice")
    turn = Turn()
    try:  # as alone does
        handles = [session._take(turn) for session in sessions]
        count = len(handles)
        events = ffi.new("wi_event[]", max(count, 1))
        for event in events:
            event.struct_size = ffi.sizeof("wi_event")
        pointers = ffi.new("wi_session*[]", [handle.cell[0] for handle in handles])
        slow = any(session._slow for session in sessions)
        started = time.perf_counter_ns()
        call(lambda token, error: lib.wi_batch_decode(pointers, count, token, events, error), cancel, slow)
        slow = time.perf_counter_ns() - started > _SLOW_NS
        for session in sessions:
            session._slow = slow
        return [event_of(event) for event in events[0:count]]
    finally:
        turn.over = True
