"""One call of the library: who holds its handle, how it is cancelled, and what it raises.

A call that fails raises what its status says. An exception in a callback goes no further than the callback: it
is noted here, the call is cancelled, and once it has ended the exception is raised. A signal handler's
exception (KeyboardInterrupt, usually) does the same: Python runs handlers on the main thread between two of
its instructions, of which there are none inside a long call, so that the main thread gives long calls to a
thread beside it and waits. Callbacks still run on the thread that made the call.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import functools
import itertools
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from ._abi import ffi
from ._library import lib
from .errors import ArgumentError, BusyError, ClosedError, error_of_native

T = TypeVar("T")
P = ParamSpec("P")
Self = TypeVar("Self", bound="Owner")
E = TypeVar("E", bound="Exclusive")

_ERROR_BYTES = ffi.sizeof("wi_error")
_MAIN = threading.main_thread().ident

# The main thread looks for signals so often, in seconds, should one have reached another thread.
_SIGNALS_S = 0.05


class Handle:
    """A native reference, released when nothing in Python needs it any more: neither its owner, nor a call that
    is inside, nor what was made from it.

    There is no __del__ here, and no callback of a weak reference: Python swallows what a signal handler raises
    while one of those runs, and Ctrl-C would be lost.
    """

    __slots__ = ("_owned", "_release", "cell", "keeps")

    def __init__(self, kind: str, release: Any, *keeps: object) -> None:
        self.cell = ffi.new(kind + "**")
        self._release = release
        self._owned: Any = None
        self.keeps: tuple[object, ...] = keeps  # outlive the native object

    def own(self) -> None:
        """Releases what a call has put into the cell, in time: cffi does, without an instruction of Python's."""
        if self.cell[0] and self._owned is None:
            self._owned = ffi.gc(self.cell[0], self._release)


class Registry(Generic[T]):
    """Weak references by number; those that are dead are swept out now and then."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._references: dict[int, weakref.ref[T]] = {}
        self._enough = 64

    def add(self, target: T) -> int:
        number = next(self._numbers)
        self._references[number] = weakref.ref(target)
        if len(self._references) > self._enough:
            for each, reference in list(self._references.items()):
                if reference() is None:
                    self._references.pop(each, None)
            self._enough = 2 * len(self._references) + 64
        return number

    def get(self, number: int) -> T | None:
        reference = self._references.get(number)
        return None if reference is None else reference()

    def living(self) -> list[T]:
        targets = [reference() for reference in list(self._references.values())]
        return [target for target in targets if target is not None]


class Owner:
    """What has a handle: closed by `close`, by the end of a `with` block, or when nobody refers to it."""

    _handle: Handle | None

    def __init__(self, handle: Handle) -> None:
        assert handle._owned is not None
        self._handle = handle
        _owners.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed: everything but `close` raises `ClosedError` then."""
        return self._handle is None

    def close(self) -> None:
        """Gives the native object back, once calls that are inside have ended. A second time does nothing.

        What was made from it is not concerned: objects may be closed in any order. Any thread.
        """
        self._handle = None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _use(self) -> Handle:
        handle = self._handle
        if handle is None:
            raise ClosedError(f"{type(self).__name__} is closed")
        return handle


class Turn:
    """What a call has while it uses what one thread at a time may use; a batch's is on many."""

    __slots__ = ("over",)

    def __init__(self, over: bool = False) -> None:
        self.over = over


class Exclusive(Owner):
    """An owner that one thread at a time may use, by methods that are `alone`."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        # The last one's place in the row of turns; the place behind it, when there is one, is its "next".
        self._last: dict[str, Any] = {"turn": Turn(over=True)}

    def _take(self, turn: Turn) -> Handle:
        """Gives this turn the object until it is over; BusyError if another one has it. In the caller's `try`."""
        handle = self._use()
        # No lock: a signal may raise when it is taken, before the block that gives it back (3.14). setdefault is
        # atomic: of two turns that come at once one is next. One whose call a signal has kept away is over.
        last, mine = self._last, {"turn": turn}
        while last["turn"].over:
            last = last.setdefault("next", mine)
        self._last = last  # or one before it, if others came between: it leads to the last one too
        if last is not mine:
            raise BusyError(f"{type(self).__name__} is in use by another call")
        return handle


def alone(method: Callable[Concatenate[E, P], T]) -> Callable[Concatenate[E, P], T]:
    """A method with nobody else inside, until a result is read. What it returns is lost where a signal handler
    raises just then, which 3.10 and 3.11 look for after a call with *args.
    """

    @functools.wraps(method)
    def taking_turns(self: E, /, *args: P.args, **kwargs: P.kwargs) -> T:
        turn = Turn()
        # A signal may raise after any call, so also after one that takes a lock and before one that gives it back:
        # an assignment ends the turn, whether it had begun or not.
        try:
            self._take(turn)
            return method(self, *args, **kwargs)
        finally:
            turn.over = True

    return taking_turns


_owners: Registry[Owner] = Registry()


@atexit.register
def _close_all() -> None:
    """No thread of the library may come back to Python when that is gone."""
    for owner in sorted(_owners.living(), key=lambda owner: type(owner).__name__ != "Task"):
        owner.close()


class Cancel:
    """Ends long calls: those that it is given to raise `CancelledError` when it fires.

    One may be given to many calls. Any thread, and a signal handler.
    """

    def __init__(self) -> None:
        self._fired = False
        self._tokens: set[Handle] = set()

    @property
    def fired(self) -> bool:
        """Whether it has fired and was not reset since."""
        return self._fired

    def trigger(self) -> None:
        """Fires: calls that have it, now or later, end, within 100 ms in a prefill and a layer in a step."""
        self._fired = True
        for token in list(self._tokens):
            lib.wi_cancel_trigger(token.cell[0])

    def reset(self) -> None:
        """Makes it usable again, for calls that begin afterwards."""
        self._fired = False
        for token in list(self._tokens):
            lib.wi_cancel_reset(token.cell[0])

    def _link(self, token: Handle) -> None:
        self._tokens.add(token)
        if self._fired:
            lib.wi_cancel_trigger(token.cell[0])


class _Request:
    """A callback that the main thread is asked to run."""

    __slots__ = ("arguments", "function", "reply")

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.reply: queue.SimpleQueue[int] = queue.SimpleQueue()


class Calling:
    """One call at a time: its cancel token, its error, and the exception that ended it."""

    __slots__ = (
        "_abandoned",
        "_ended",
        "_interrupted",
        "_request",
        "_wake",
        "beside",
        "carried",
        "error",
        "token",
    )

    def __init__(self) -> None:
        self.token = Handle("wi_cancel", lib.wi_cancel_release)
        self.error = ffi.new("wi_error*")
        self.error.struct_size = _ERROR_BYTES
        status = lib.wi_cancel_create(self.token.cell, self.error)
        if status:
            raise error_of_native(status, self.error)
        self.token.own()
        self.carried: BaseException | None = None
        self.beside = False
        self._abandoned = False
        self._request: _Request | None = None
        self._ended: int | BaseException | None = None
        self._interrupted: BaseException | None = None
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def carry(self, exception: BaseException) -> None:
        """Notes what the call is to raise, and ends it. The first exception counts."""
        if self.carried is None:
            self.carried = exception
        lib.wi_cancel_trigger(self.token.cell[0])

    def run(self, function: Callable[..., object], *arguments: Any) -> int:
        """Runs a callback, on the thread that made the call. Returns what the library wants: 0, go on."""
        if self.carried is not None:
            return 1
        if not self.beside:
            try:
                function(*arguments)
            except BaseException as exception:
                self.carry(exception)
                return 1
            return 0
        request = _Request(function, arguments)
        self._request = request
        self._wake.put(None)
        return 1 if self._abandoned else request.reply.get()

    def run_beside(self, function: Callable[[Any, Any], int]) -> int:
        """Makes the call on another thread, while this one, the main thread, handles signals."""
        self.beside = True
        self._abandoned = False
        self._ended = None
        turns = [function]

        def work() -> None:
            try:
                function = turns.pop()
            except IndexError:  # started twice
                return
            _local.current = self
            ended: int | BaseException
            try:
                ended = function(self.token.cell[0], self.error)
            except BaseException as exception:
                ended = exception
            del function  # what it holds is not this thread's to release, some time after the call
            self._ended = ended
            self._wake.put(None)

        try:
            self._serve(work)
        except BaseException as exception:  # a second signal, within the few instructions after a first one
            self._interrupted = exception
            self._serve(work)
        finally:
            self._abandoned = True
            self._answer(1)
        self.beside = False
        if isinstance(self._ended, BaseException):
            raise self._ended
        return self._ended or 0

    # A signal may raise between any two instructions. So what is to be done is told by fields, looked at again
    # and again, never by what a queue gives, which might get lost: it only wakes.
    def _serve(self, work: Callable[[], None]) -> None:
        started = False
        while True:
            try:
                if self._interrupted is not None:
                    self.carry(self._interrupted)
                    self._answer(1)
                    self._interrupted = None
                if not started:
                    self._start(work)
                    started = True
                while self._ended is None:
                    request = self._request
                    if request is None:
                        with contextlib.suppress(queue.Empty):
                            self._wake.get(timeout=_SIGNALS_S)
                    elif self.carried is not None:
                        self._answer(1)
                    else:
                        request.function(*request.arguments)
                        self._answer(0)
                return
            except BaseException as exception:
                self._interrupted = exception

    def _start(self, work: Callable[[], None]) -> None:
        try:
            _thread.start_new_thread(work, ())  # Thread.start would wait, and could be interrupted in that
        except RuntimeError:  # the system refuses a thread: signals have to wait
            self.beside = False
            work()

    def _answer(self, value: int) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.reply.put(value)


class _Local(threading.local):
    """A thread's calls: the one that it is in, and some that may be used again; and whether it is the engine's,
    within a callback.
    """

    def __init__(self) -> None:
        self.current: Calling | None = None
        self.free: list[Calling] = []
        self.engine = False


_local = _Local()

# A child process makes calls of its own: the parent's tokens are dead there.
os.register_at_fork(after_in_child=lambda: _local.free.clear())


def call(
    function: Callable[[Any, Any], int],
    cancel: Cancel | None = None,
    long: bool = False,
    into: Handle | None = None,
) -> None:
    """Calls function(token, error), which returns a status; raises what went wrong.

    long: beside the main thread, if that is where we are
    into: owns what the call puts into its cell, whatever happens after that
    """
    local = _local
    outer = local.current
    calling = local.free.pop() if local.free else Calling()
    try:
        local.current = calling
        if cancel is not None:
            cancel._link(calling.token)
        if long and threading.get_ident() == _MAIN:
            status = calling.run_beside(function)
        else:
            status = function(calling.token.cell[0], calling.error)
    except OverflowError as problem:
        raise ArgumentError(str(problem)) from None
    finally:
        if into is not None:
            into.own()
        local.current = outer
        if cancel is not None:
            cancel._tokens.discard(calling.token)
    exception, calling.carried = calling.carried, None
    if exception is not None:
        raise exception
    error = error_of_native(status, calling.error) if status else None
    if cancel is None:  # else somebody may still be about to fire the token, reset or not
        local.free.append(calling)
    if error is not None:
        raise error


# Of the package's own: the event loop's has few threads, which others wait for too. They are made as needed.
_ASYNC_THREADS = 256
_beside: ThreadPoolExecutor


def _set_up_beside() -> None:
    global _beside
    _beside = ThreadPoolExecutor(_ASYNC_THREADS, "waveinfer")


_set_up_beside()
os.register_at_fork(after_in_child=_set_up_beside)  # threads stay behind


async def call_async(function: Callable[[Cancel], T]) -> T:
    """Runs a blocking call beside the event loop. Cancelling the task, once or many times, ends the call first."""
    cancel = Cancel()
    work = _beside.submit(function, cancel)
    future = asyncio.wrap_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as exception:
            if work.cancel():  # it still waits for a thread
                raise
            cancel.trigger()
            cancelled = exception
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # nobody else looks at it
        raise cancelled
    return future.result()


# ---------------------------------------------- Callbacks ----------------------------------------------
# The library is given numbers instead of pointers to objects of Python's: one that is gone is found by nobody.


@contextlib.contextmanager
def _as_engine() -> Iterator[None]:
    before, _local.engine = _local.engine, True
    try:
        yield
    finally:
        _local.engine = before


def is_engine() -> bool:
    """Whether this thread would wait for itself if it waited for the engine."""
    return _local.engine


class Target:
    """What a callback reaches, as long as this lives."""

    __slots__ = ("__weakref__", "target", "user")

    def __init__(self, target: Any) -> None:
        self.target = target
        self.user = ffi.cast("void*", _targets.add(self))


_targets: Registry[Target] = Registry()


def _target(user: Any) -> Any:
    found = _targets.get(int(ffi.cast("uintptr_t", user)))
    return None if found is None else found.target


def _failed(kind: Any, exception: Any, trace: Any) -> None:
    """Of a callback itself, before its own code began: KeyboardInterrupt, as a rule."""
    if _local.current is not None:
        _local.current.carry(exception)
    elif kind is KeyboardInterrupt:
        _thread.interrupt_main()  # once more, where somebody hears it
    else:
        sys.excepthook(kind, exception, trace)


def callback(kind: str, error: int | None = None) -> Callable[[Callable[..., int | None]], Any]:
    """A function as C's; `error` is what it returns when it raises."""
    return lambda function: ffi.callback(kind, function, error, _failed)


@callback("wi_progress_callback", error=1)
def on_progress(user: Any, done: int, total: int) -> int:
    current, progress = _local.current, _target(user)
    return 1 if current is None or progress is None else current.run(progress, done, total)


@callback("int32_t(void*, uint64_t, void*, uint64_t)", error=1)
def on_read(user: Any, offset: int, to: Any, count: int) -> int:
    current, read = _local.current, _target(user)
    return 1 if current is None or read is None else current.run(read, offset, to, count)


@callback("int32_t(void*, const void*, uint64_t)", error=1)
def on_write(user: Any, start: Any, count: int) -> int:
    current, write = _local.current, _target(user)
    return 1 if current is None or write is None else current.run(write, start, count)


@callback("wi_logits_callback", error=1)
def on_logits(user: Any, logits: Any, vocab: int) -> int:
    sampler = _target(user)
    if sampler is None:
        return 1
    if _local.current is not None:
        return _local.current.run(sampler.change, logits, vocab)
    try:
        with _as_engine():
            sampler.change(logits, vocab)
    except BaseException as exception:
        sampler.failure = exception
        return 1
    return 0


@callback("wi_log_callback")
def on_log(user: Any, level: int, message: Any) -> None:
    log = _target(user)
    if log is None:
        return
    text = ffi.string(message).decode("utf-8", "replace")
    if _local.current is not None:
        _local.current.run(log, level, text)
    else:
        log(level, text)  # from one of the runtime's own threads


@callback("wi_release_callback")
def on_log_release(user: Any) -> None:
    _logs.pop(int(ffi.cast("uintptr_t", user)), None)


_logs: dict[int, Target] = {}  # until their runtime and all that was made of it are gone


def keep_log(target: Target) -> None:
    _logs[int(ffi.cast("uintptr_t", target.user))] = target


def has_log() -> bool:
    """Whether a runtime may call one."""
    return bool(_logs)


@callback("wi_task_callback")
def on_task(user: Any) -> None:
    notify = _target(user)
    if notify is not None:
        with _as_engine():
            notify()
