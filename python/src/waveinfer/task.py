"""Tasks: sessions that the runtime works on by itself, and whose events are polled, waited for or awaited."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import enum
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypeVar

from ._abi import ffi
from ._calls import Exclusive, Handle, Target, alone, call, has_log, is_engine, on_task
from ._library import lib
from ._values import Arguments, Text, Tokens, int32_pointer, read, result, token_array
from .errors import ArgumentError, ClosedError, StateError, Status, error_of
from .params import Sampler, Sampling, sampling_struct
from .session import Event, EventKind, event_of

if TYPE_CHECKING:
    from .session import Session

_EVENTS = 64  # fetched at a time by a poll
_WAIT_NS = 50_000_000  # a wait is cut in pieces, between which signals are handled
_LONG_S = 1e9  # longer waits, math.inf too, are as long
_END_S = 10.0  # the end of the process waits for callbacks no longer

Number = TypeVar("Number", bound=enum.IntEnum)


class TaskState(enum.IntEnum):
    """Where a task is."""

    QUEUED = 0
    """Waits for memory."""
    READING = 1
    """Its prompt."""
    WRITING = 2
    """Its answer."""
    DONE = 3
    """The answer has ended, or has max_tokens tokens."""
    CANCELLED = 4
    """By `Task.cancel`, or because it was closed."""
    FAILED = 5
    """status and message say why."""


_LAST: dict[int, EventKind] = {
    TaskState.DONE: EventKind.END,
    TaskState.CANCELLED: EventKind.CANCELLED,
    TaskState.FAILED: EventKind.FAILED,
}


@dataclass(frozen=True)
class TaskInfo:
    """How far a task is (wi_task_info)."""

    state: TaskState | int
    """Where it is; a plain number is one that this package does not know."""
    status: Status | int
    """Of a failed or cancelled task; a plain number as in state."""
    prompt_tokens: int
    """0 while a text is not tokenised yet."""
    prompt_done: int
    """Of them: read."""
    answer_tokens: int
    """Written, fetched or not."""
    queued_ns: int
    """From submission to admission; 0: not admitted yet."""
    first_token_ns: int
    """From submission to the first token; 0: none yet."""
    message: str
    """Of a failed or cancelled task: what a call would have said."""
    native_code: int
    """Of a failed task: errno or a driver's code; 0: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", _known(TaskState, self.state))
        object.__setattr__(self, "status", _known(Status, self.status))


def _known(kind: type[Number], number: int) -> Number | int:
    try:
        return kind(number)
    except ValueError:  # of a newer library
        return number


class Task(Exclusive):
    """A prompt and its answer, worked on beside the host's threads; made by `Session.submit`.

    Iterate over it, `for` or `async for`, to get its events; or `poll` it, `wait` for it, or give it to a
    selector: it has a `fileno`, which is readable while there are events. A loop may be left early: the next one,
    or `poll`, goes on with the event after its last. Any thread, and event loops in many; each event goes to one
    of those who ask, and all of them learn of the end. Events are fetched by one at a time, and who finds another
    one fetching, as a signal handler may, gets `BusyError`.
    """

    def __init__(self, handle: Handle, failures: _Failures, own: _OwnSampling | None) -> None:
        super().__init__(handle)
        self._failures = failures
        self._own = own
        self._batch = _Batch()
        self._awaiting: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}
        self._events = ffi.new("wi_event[]", _EVENTS)
        for event in self._events:
            event.struct_size = ffi.sizeof("wi_event")

    def close(self) -> None:
        """Cancels it if it has not ended, and gives it back; who iterates over it gets `ClosedError`. Where
        weights lie in memory of the host's, this waits until the engine has left them, which takes a step.
        """
        handle = self._handle
        if handle is not None:
            lib.wi_task_cancel(handle.cell[0])  # now: who waits for it holds the handle
            self._look_at_sampling()
        super().close()
        self._wake()
        if isinstance(handle, _Borrower):
            if handle.loan.memory and not is_engine():
                handle.loan.wait()
            handle.loan.take_back()

    @property
    def ended(self) -> bool:
        """Whether its last event was fetched."""
        return self._batch.ends and not self._waiting()

    def poll(self) -> list[Event]:
        """Events that have come since the last call, oldest first; never waits. The last one is not of kind
        TOKEN. A task that failed raises what went wrong, with the events before it fetched already; so does
        one whose callback raised. Errors: BusyError if another call is fetching events.

        Where a signal handler raises in it, what it has fetched waits for the next call, readable `fileno` or
        not. Its caller may still lose the list: Python 3.10 handles signals between the end of a call and the use
        of its result; from 3.11 on a plain call does not. A loop over the task loses nothing anywhere.
        """
        self._fetch(_EVENTS)
        # Takes them and returns by instructions that look for no signals. This is not `alone`, which may look for
        # them afterwards, and needs no turn: an iterator gives each event once, whoever asks.
        return [*self._batch.given]

    def _fetch(self, most: int) -> bool:
        """Sees to it that what comes next, if anything is there, waits in the batch. Raises what went wrong."""
        try:
            self._fill_batch(most)
        finally:
            self._wake()  # now that the task is not busy any more
        batch = self._batch
        if batch.ends and batch.fails and not self._waiting():
            failure = self._failure()
            batch.fails = False
            raise failure
        return self._waiting()

    @alone
    def _fill_batch(self, most: int) -> None:
        batch = self._batch
        if self._waiting() or batch.ends:
            return
        if batch.made:  # and all of it given
            self._batch = batch = _Batch()
        events = self._ask(batch, most) or self._untold(batch, most)
        if self._failures.notified:
            self.cancel()
        if events:
            if events[-1].kind != EventKind.TOKEN:
                self._look_at_sampling()
                batch.last = True
                if events[-1].kind == EventKind.FAILED or self._failures.notified:
                    batch.fails = True
                    events.pop()  # what was written before is not lost: what went wrong is raised after it
            batch.given = iter(events)

    def _waiting(self) -> bool:
        """Whether something was fetched and not given."""
        return length_hint(self._batch.given) > 0

    def _look_at_sampling(self) -> None:
        task = self._handle
        if self._own is not None and task is not None:
            info = result("wi_task_info")
            if not lib.wi_task_get_info(task.cell[0], info, ffi.NULL) and info.queued_ns:
                self._own.in_force = True

    def _ask(self, batch: _Batch, most: int) -> list[Event]:
        """What the library has now, or had when it was asked for this batch before."""
        task, count = self._use(), batch.count
        if not count[0]:
            call(lambda _, error: lib.wi_task_poll(task.cell[0], self._events, most, count, error))
        return [event_of(event) for event in self._events[0 : count[0]]]

    def _untold(self, batch: _Batch, most: int) -> list[Event]:
        """The last event of a task that has had no memory for it."""
        if (state := self.info().state) < TaskState.DONE:
            return []
        # What came between the two.
        return self._ask(batch, most) or [Event(_LAST.get(state, EventKind.FAILED), -1, "", 0.0, ())]

    def _failure(self) -> BaseException:
        if self._failures.notified:
            return self._failures.notified[0]
        info = self.info()
        # Only a callback makes a task fail as cancelled. The sampler may be one of other tasks' too: what it has
        # raised in those is none of this one's.
        if info.status == Status.CANCELLED:
            for sampler in self._failures.samplers:
                if sampler.failure is not None:
                    return sampler.failure
        return error_of(info.status, info.message, info.native_code)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until there are events to poll, or the task has ended; at most `timeout` seconds. Returns
        whether there are. Errors: StateError in a logits callback or notify of a task, which the engine waits
        for, if there are none.
        """
        task, ready = self._use(), ffi.new("int32_t*")
        interrupted = self._batch.begun and self._last["turn"].over
        if self._waiting() or interrupted:
            return True
        if is_engine():
            call(lambda _, error: lib.wi_task_wait(task.cell[0], 0, ready, error))
            if not ready[0]:
                raise StateError(
                    "the engine waits for this callback, which would wait for the engine; cancel does not"
                )
            return True
        end = None if timeout is None else time.monotonic_ns() + int(min(max(timeout, 0), _LONG_S) * 1e9)
        while True:
            nap = _WAIT_NS if end is None else max(0, min(_WAIT_NS, end - time.monotonic_ns()))
            call(lambda _, error, nap=nap: lib.wi_task_wait(task.cell[0], nap, ready, error))  # type: ignore[misc]
            if ready[0] or (end is not None and time.monotonic_ns() >= end):
                return bool(ready[0])

    def fileno(self) -> int:
        """A file descriptor that is readable while there are events to poll; the task's own, neither to be
        read nor closed. Errors: FileError if the system has none left.
        """
        task, number = self._use(), ffi.new("int32_t*")
        call(lambda _, error: lib.wi_task_get_fd(task.cell[0], number, error))
        return int(number[0])

    def cancel(self) -> None:
        """Ends the task within one step of the engine: its last event is of kind CANCELLED then, and its session
        is free. One that has ended stays as it is.
        """
        lib.wi_task_cancel(self._use().cell[0])

    def info(self) -> TaskInfo:
        """How far it is."""
        task, info = self._use(), result("wi_task_info")
        call(lambda _, error: lib.wi_task_get_info(task.cell[0], info, error))
        return read(info, TaskInfo)

    def __iter__(self) -> Iterator[Event]:
        """Its events, waited for, the one that ends it included."""
        # One at a time: what a loop that is left early has not given is still the library's, and fileno readable.
        while not self._finished():
            self.wait()
            self._fetch(1)
            yield from self._batch.given

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Its events, awaited, the one that ends it included. Cancelling the asyncio task cancels it; leaving the
        loop early does not.
        """
        try:
            while not self._finished():
                if not self._fetch(1):
                    await self._readable()
                for event in self._batch.given:
                    yield event
        except asyncio.CancelledError:
            with contextlib.suppress(ClosedError):
                self.cancel()
            raise

    def _finished(self) -> bool:
        return self.ended and not self._batch.fails

    async def _readable(self) -> None:
        """Until there is something to fetch, or the task has ended, whoever has fetched that."""
        task = self._use()  # its descriptor stays open so long: closing the task ends it, which is an event
        loop, number = asyncio.get_running_loop(), self.fileno()
        ready, waiting = loop.create_future(), self._awaiting.setdefault(loop, set())
        try:
            waiting.add(ready)
            loop.add_reader(number, _set, waiting)  # a loop has one, for all who wait in it
            if not _over(task.cell[0]):  # else it might have been fetched before _wake knew of this one
                await ready
        finally:
            waiting.discard(ready)
            if not waiting:
                loop.remove_reader(number)
                self._awaiting.pop(loop, None)
            del task

    def _wake(self) -> None:
        """Those who await the descriptor, once it may never be readable again."""
        task = self._handle
        if self._awaiting and (task is None or _over(task.cell[0])):
            for loop, waiting in list(self._awaiting.items()):
                try:
                    loop.call_soon_threadsafe(_set, waiting)
                except RuntimeError:  # it is closed
                    self._awaiting.pop(loop, None)

    async def end_async(self) -> None:
        """Cancels it if it has not ended, and waits until its session is free."""
        if self.closed or self.ended:
            return
        self.cancel()
        while self.info().state < TaskState.DONE:
            await self._readable()
            self._drop()
            self._wake()

    @alone
    def _drop(self) -> None:
        self._batch = _Batch()
        self._ask(self._batch, _EVENTS)


_NOTHING: Iterator[Event] = iter(())


class _Batch:
    """Events on their way from the library to the host. A signal handler may raise between any two instructions:
    what was fetched is in here until it is given, and an assignment or an iterator's step is what moves it on.
    """

    __slots__ = ("count", "fails", "given", "last")

    def __init__(self) -> None:
        self.count = ffi.new("uint64_t*")  # that the library gave
        self.given = _NOTHING  # made of them: gives each once, whoever asks
        self.last = False  # the task's last one is among them
        self.fails = False  # and stands for what is raised instead

    @property
    def begun(self) -> bool:
        """Whether a call is between the two, or was when a signal handler raised."""
        return self.count[0] > 0 and not self.made

    @property
    def made(self) -> bool:
        return self.given is not _NOTHING

    @property
    def ends(self) -> bool:
        return self.last and self.made


def _set(waiting: set[asyncio.Future[None]]) -> None:
    for ready in tuple(waiting):
        if not ready.done():
            ready.set_result(None)


def _over(task: Any) -> bool:
    """Whether the engine has left it."""
    info = result("wi_task_info")
    return bool(lib.wi_task_get_info(task, info, ffi.NULL)) or info.state >= TaskState.DONE


class _Failures:
    """Exceptions of callbacks that ran on the engine's thread."""

    def __init__(self) -> None:
        self.notified: list[BaseException] = []
        self.samplers: list[Sampler] = []


class _OwnSampling:
    """What the sampling that a task was given may call. If the task ends before it is admitted, the session may
    still have the one before.
    """

    def __init__(self, keeps: tuple[object, ...]) -> None:
        self.keeps = keeps
        self.in_force = False  # as far as is known


# ------------------------------------------ What is the host's ------------------------------------------
# A task that is dropped is cancelled, but the engine may be within a step: what the weights lie in must stay
# until that is over, and so must Python, if the step calls it. Nothing of Python's runs when an object goes (see
# Handle), so the memory is kept here, with a second reference to the task, which is looked at when another one
# comes, or this one goes, or the process ends.


class _Loan:
    """What a task uses of the host's: memory that weights lie in, if any, and callbacks."""

    def __init__(self, memory: tuple[object, ...]) -> None:
        self.memory = memory
        self.task: Any = None

    def over(self) -> bool:
        """Whether the engine has left the task. Unknown where an exception came between: then never."""
        return self.task is not None and _over(self.task)

    def wait(self, until: float = math.inf) -> None:
        while self.task is not None and not self.over() and time.monotonic() < until:
            time.sleep(0.0002)

    def take_back(self) -> None:
        if self.over():
            _loans.discard(self)


class _Borrower(Handle):
    """The handle of a task that uses what is the host's."""

    __slots__ = ("loan",)

    def __init__(self, loan: _Loan, *keeps: object) -> None:
        super().__init__("wi_task", lib.wi_task_release, *keeps)
        self.loan = loan

    def own(self) -> None:
        """As of others, but it is not the last reference: it cancels, then releases."""
        if self.cell[0] and self._owned is None:
            self.loan.task = ffi.gc(lib.wi_task_retain(self.cell[0]), lib.wi_task_release)
            self._owned = ffi.gc(ffi.gc(self.cell[0], lib.wi_task_release), lib.wi_task_cancel)


_loans: set[_Loan] = set()


def _take_back() -> None:
    """All that the engine has left."""
    for loan in tuple(_loans):
        loan.take_back()


@atexit.register
def _end_all() -> None:
    """The engine must not be in such memory when Python gives everything back. Nor may it call then: a Python that
    ends unwinds a thread that asks for its turn (up to 3.13), and one within the library ends the process so.
    """
    loans, end = tuple(_loans), time.monotonic() + _END_S  # of which threads that are left may take some
    for loan in loans:
        if loan.task is not None:
            lib.wi_task_cancel(loan.task)
    for loan in loans:
        loan.wait(math.inf if loan.memory else end)
    _take_back()  # who releases a task waits for its notify


def submit(
    owner: Session,
    prompt: Text | Tokens | None,
    *,
    max_tokens: int | None,
    priority: int,
    flags: int,
    sampling: Sampling | None,
    notify: Callable[[], object] | None,
) -> Task:
    """See Session.submit, whose turn it is."""
    if max_tokens == 0:  # which is no limit to the library
        raise ArgumentError("max_tokens is 0: a task writes at least one token; None: without limit")
    session, arguments, failures = owner._use(), Arguments(), _Failures()
    sampler, keeps = sampling_struct(arguments, sampling)
    params = arguments.struct(
        "wi_task_params",
        priority=priority,
        tokenize_flags=flags,
        max_tokens=max_tokens or 0,
        sampling=sampler,
    )
    if isinstance(prompt, str | bytes):
        params.text, params.text_length = arguments.text(prompt)
    elif prompt is not None:
        ids = arguments.keep(token_array(prompt))
        params.tokens, params.token_count = arguments.keep(int32_pointer(ids)), ids.size
    target = None
    if notify is not None:
        function = notify

        def notified() -> None:
            try:
                function()
            except BaseException as exception:
                failures.notified.append(exception)

        target = Target(notified)
        params.notify, params.notify_user = on_task, target.user
    own = None if sampling is None else _OwnSampling(keeps)
    model, before = session.keeps[0], _may_be_in_force(session.keeps[1:])
    kept = (model, *before) if own is None else (model, own, *before)
    failures.samplers = _samplers(before if own is None else keeps)
    assert isinstance(model, Handle)
    if not (model.keeps or _samplers(kept) or has_log()):
        handle = Handle("wi_task", lib.wi_task_release, session, kept, target)
        _submit(session, params, handle, kept)
        return Task(handle, failures, own)
    _take_back()
    loan = _Loan(model.keeps)
    handle = _Borrower(loan, session, kept, target)
    _loans.add(loan)
    try:
        _submit(session, params, handle, kept)
    finally:
        if not handle.cell[0]:
            _loans.discard(loan)
    return Task(handle, failures, own)


def _submit(session: Handle, params: Any, handle: Handle, kept: tuple[object, ...]) -> None:
    call(lambda _, error: lib.wi_task_submit(session.cell[0], params, handle.cell, error), into=handle)
    session.keeps = kept


def _may_be_in_force(samplings: tuple[object, ...]) -> tuple[object, ...]:
    """Of those that a session was given, newest first: none behind one that is known to have been in force."""
    for count, each in enumerate(samplings, 1):
        if isinstance(each, _OwnSampling) and each.in_force:
            return samplings[:count]
    return samplings


def _samplers(keeps: object) -> list[Sampler]:
    if isinstance(keeps, Sampler):
        return [keeps]
    if isinstance(keeps, _OwnSampling):
        return _samplers(keeps.keeps)
    return [found for each in keeps for found in _samplers(each)] if isinstance(keeps, tuple) else []
