"""Exceptions of callbacks, Ctrl-C and other signals end a call, are raised by it, and leave all as it was."""

import gc
import io
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MODEL, answer, some_tokens
from numpy.typing import NDArray

import waveinfer
from waveinfer import KvStore, LogLevel, Model, Runtime, Sampling, Session


class Mine(Exception):
    """Of a callback's own."""


def fail(*_: object) -> None:
    raise Mine("so it goes")


def test_an_exception_of_progress_ends_a_prefill_and_is_raised(session: Session) -> None:
    session.prefill(some_tokens(10))
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 512:
            raise Mine("enough")

    with pytest.raises(Mine, match="enough"):
        session.prefill(some_tokens(5000), chunk_tokens=256, progress=progress)
    assert seen[-1][0] < 5000
    assert session.stats().tokens == 10
    session.prefill(
        some_tokens(300), chunk_tokens=256, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (300, 300)


def test_an_exception_of_progress_ends_an_open(runtime: Runtime) -> None:
    with pytest.raises(Mine):
        runtime.open(MODEL, progress=fail)
    with pytest.raises(Mine):
        runtime.open_memory(MODEL.read_bytes(), progress=fail)
    with pytest.raises(Mine):
        runtime.open_file(io.BytesIO(MODEL.read_bytes()), progress=fail)


def test_an_exception_of_a_logits_callback_ends_a_step_and_loses_nothing(session: Session) -> None:
    session.prefill(some_tokens(50))
    with session.fork() as other:
        expected = answer(other)
    session.set_sampling(Sampling(logits=fail))
    with pytest.raises(Mine):
        session.decode()
    with session.fork() as inherits, pytest.raises(Mine):
        waveinfer.decode_batch([inherits])
    session.set_sampling()
    assert answer(session) == expected


def test_an_exception_of_the_log_ends_the_call_that_logs() -> None:
    with pytest.raises(Mine):
        Runtime(log=fail, log_level=LogLevel.DEBUG).open(MODEL)


class Broken(io.RawIOBase):
    """A file object that fails after some bytes."""

    def __init__(self, data: bytes, good: int) -> None:
        super().__init__()
        self._data, self._good, self._place = data, good, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = (0, self._place, len(self._data))[whence] + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, count: int = -1) -> bytes:
        self._place += count
        if self._place > self._good:
            raise Mine("no more")
        return self._data[self._place - count : self._place]

    def write(self, piece: Any) -> int:
        self._good -= 1
        if self._good < 0:
            raise Mine("full")
        return min(1000, len(piece))


def test_exceptions_of_file_objects_are_raised(runtime: Runtime, model: Model, session: Session) -> None:
    data = MODEL.read_bytes()
    with pytest.raises(Mine, match="no more"):
        runtime.open_file(Broken(data, 3_000_000))  # type: ignore[arg-type]
    with pytest.raises(EOFError):
        runtime.open_file(io.BytesIO(data), len(data) + 1)
    session.prefill(some_tokens(2000))
    with pytest.raises(Mine, match="full"):
        session.save_file(Broken(b"", 20))  # type: ignore[arg-type]
    saved = io.BytesIO()
    session.save_file(saved)
    with pytest.raises(Mine):
        model.load_file(Broken(saved.getvalue(), 100_000))  # type: ignore[arg-type]
    session.decode()


class Reads:
    """A file object whose read gives what a function makes of the bytes that were asked for, or of some."""

    def __init__(self, data: bytes, answer: Callable[[bytes], object], at_most: int = 2**30) -> None:
        self._file, self._answer, self._at_most = io.BytesIO(data), answer, at_most
        self.seek, self.tell = self._file.seek, self._file.tell

    def read(self, count: int) -> Any:
        return self._answer(self._file.read(min(count, self._at_most)))


SHAPE = {"layers": 1, "query_heads": 1, "kv_heads": 1, "head_dim": 8}


def test_a_file_that_gives_more_than_was_asked_for_is_refused(
    runtime: Runtime, model: Model, session: Session
) -> None:
    session.prefill(some_tokens(100))
    saved, stored = io.BytesIO(), io.BytesIO()
    session.save_file(saved)
    with KvStore(runtime, **SHAPE) as store:  # type: ignore[arg-type]
        store.append(0, np.ones((100, 1, 8)), np.ones((100, 1, 8)))
        store.save_file(stored)

    def longer(data: bytes) -> object:
        return data + bytes(10_000_000)

    def elements(data: bytes) -> object:  # no more of them than bytes that were asked for
        return np.zeros(len(data), np.float64)

    for answer_of in (longer, elements):

        def reads(data: bytes, answer_of: Callable[[bytes], object] = answer_of) -> Any:
            return Reads(data, answer_of)

        with pytest.raises(ValueError, match="were asked for"):
            runtime.open_file(reads(MODEL.read_bytes()))
        with pytest.raises(ValueError, match="were asked for"):
            model.load_file(reads(saved.getvalue()))
        with pytest.raises(ValueError, match="were asked for"):
            KvStore.load_file(runtime, reads(stored.getvalue()), **SHAPE)  # type: ignore[arg-type]


def test_what_a_file_gives_is_bytes_wherever_they_lie(model: Model, session: Session) -> None:
    session.prefill(some_tokens(100))
    saved = io.BytesIO()
    session.save_file(saved)
    expected = answer(session)
    kinds: list[Callable[[bytes], object]] = [
        bytearray,
        lambda data: np.frombuffer(data, np.uint16 if len(data) % 2 == 0 else np.uint8),
        lambda data: np.frombuffer(data, np.uint8).repeat(3)[::3],
    ]
    for kind in kinds:
        for at_most in (1001, 2**30):
            reads: Any = Reads(saved.getvalue(), kind, at_most)
            with model.load_file(reads) as loaded:
                assert answer(loaded) == expected
    nothing: Any = Reads(saved.getvalue(), lambda _: None)
    with pytest.raises(BlockingIOError):
        model.load_file(nothing)
    text: Any = Reads(saved.getvalue(), lambda data: "x" * len(data))
    with pytest.raises(TypeError):
        model.load_file(text)


def test_a_file_that_takes_nothing_is_not_asked_for_ever(session: Session) -> None:
    session.prefill(some_tokens(100))
    for taken in (0, -1, None, 2**40):
        asked: list[int] = []

        class Full(io.RawIOBase):
            def write(self, piece: Any, taken: Any = taken, asked: list[int] = asked) -> Any:
                asked.append(len(piece))
                if len(asked) > 3:
                    raise Mine("asked again and again")
                return taken

        with pytest.raises(OSError, match="would block" if taken is None else f"took {taken} of"):
            session.save_file(Full())  # type: ignore[arg-type]
        assert len(asked) == 1
    session.decode()


def test_callbacks_run_on_the_thread_that_made_the_call(session: Session) -> None:
    threads: list[int] = []

    def progress(_done: int, _total: int) -> None:
        threads.append(threading.get_ident())

    session.prefill(some_tokens(300), progress=progress)
    other = threading.Thread(target=lambda: session.prefill(some_tokens(300), progress=progress))
    other.start()
    other.join()
    assert set(threads) == {threading.get_ident(), other.ident}


def test_a_callback_may_use_other_objects_but_not_its_own(model: Model, session: Session) -> None:
    seen: list[object] = []

    def progress(_done: int, _total: int) -> None:
        with model.session() as other:
            other.prefill(some_tokens(100), progress=lambda *_: seen.append(session.stats().tokens))
        with pytest.raises(waveinfer.BusyError):
            session.decode()

    session.prefill(some_tokens(300), progress=progress)
    assert seen == [0] * len(seen) != []


def test_a_logits_callback_has_its_logits_alone_whatever_forks_decode(session: Session) -> None:
    within: list[Session] = []
    meeting = threading.Barrier(2, timeout=60)
    unchanged: list[bool] = []

    def look(logits: NDArray[np.float32]) -> None:
        before = logits.copy()
        if within:
            within.pop().decode()
        elif threading.current_thread() is not threading.main_thread():
            meeting.wait()
        unchanged.append(bool((logits == before).all()))

    session.prefill(some_tokens(50))
    session.set_sampling(Sampling(logits=look))
    with session.fork() as fork, session.fork_as() as other:
        fork.prefill(some_tokens(10, seed=2))
        other.prefill(some_tokens(10, seed=3))
        within.append(fork)
        session.decode()
        assert unchanged == [True, True]
        threads = [threading.Thread(target=each.decode) for each in (fork, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert unchanged == [True] * 4


# ---------------------------------------------- Signals ----------------------------------------------


@contextmanager
def killed_after(seconds: float, again: float | None = None) -> Iterator[None]:
    """Ctrl-C in a while, and perhaps a second one. When this is over nothing comes any more."""

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        if again is not None:
            time.sleep(again)
            os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds, kill)
    gc.disable()  # what a signal raises in destructors of others' garbage, Python loses
    interrupted: BaseException | None = None
    try:
        timer.start()
        yield
    except KeyboardInterrupt as exception:
        interrupted = exception
    while timer.is_alive():
        try:
            timer.join()
        except KeyboardInterrupt as exception:
            interrupted = exception
    gc.enable()
    if interrupted is not None:
        raise interrupted


def test_ctrl_c_ends_a_prefill_soon(session: Session) -> None:
    session.prefill(some_tokens(100))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), killed_after(0.3):
        session.prefill(some_tokens(200_000))
    assert time.monotonic() - started < 20
    assert session.stats().tokens == 100
    assert len(answer(session)) == 8


def test_ctrl_c_ends_one_chunk_of_a_prefill(session: Session) -> None:
    with pytest.raises(KeyboardInterrupt), killed_after(0.3):
        session.prefill(some_tokens(30_000), chunk_tokens=30_000)
    assert session.stats().tokens == 0


def test_ctrl_c_ends_a_call_whose_callback_has_begun(session: Session) -> None:
    seen = []
    with pytest.raises(KeyboardInterrupt), killed_after(0.3):
        session.prefill(some_tokens(200_000), chunk_tokens=64, progress=lambda done, _: seen.append(done))
    assert session.stats().tokens == 0
    assert seen


def test_ctrl_c_in_decode_steps_is_never_lost(session: Session, rng: random.Random) -> None:
    session.prefill(some_tokens(2000))
    for log in (None, lambda logits: logits.max()):
        session.set_sampling(Sampling(logits=log))
        for _ in range(20):
            with session.fork() as fork:
                with pytest.raises(KeyboardInterrupt), killed_after(rng.uniform(0.005, 0.02)):
                    for _ in iter(fork.decode, None):  # for ever
                        pass
                tokens = fork.stats().tokens
                fork.decode()
                assert fork.stats().tokens == tokens + 1


def test_a_signal_at_any_moment_ends_a_call_and_leaves_its_session_free(
    session: Session, rng: random.Random
) -> None:
    tokens = some_tokens(200_000)
    for progress in (None, lambda done, total: done + total):
        for _ in range(30):
            with pytest.raises(KeyboardInterrupt), killed_after(rng.uniform(0, 0.01)):
                session.prefill(tokens, chunk_tokens=64, progress=progress)
            assert session.stats().tokens == 0
            session.truncate(0)


def test_ctrl_c_twice_is_once(session: Session, rng: random.Random) -> None:
    tokens = some_tokens(200_000)
    for _ in range(20):
        with (
            pytest.raises(KeyboardInterrupt),
            killed_after(rng.uniform(0, 0.01), again=rng.uniform(0, 0.001)),
        ):
            session.prefill(tokens)
        session.truncate(0)


def test_a_handler_s_exception_ends_a_call_too(session: Session) -> None:
    previous = signal.signal(signal.SIGALRM, fail)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Mine):
            session.prefill(some_tokens(200_000))
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert session.stats().tokens == 0


def test_a_handler_that_returns_ends_nothing(session: Session) -> None:
    seen: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        session.prefill(some_tokens(5000))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert len(seen) > 1
    assert session.stats().tokens == 5000


def test_a_signal_handler_may_fire_a_cancel(session: Session) -> None:
    cancel = waveinfer.Cancel()
    previous = signal.signal(signal.SIGALRM, lambda *_: cancel.trigger())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(waveinfer.CancelledError):
            session.prefill(some_tokens(200_000), cancel=cancel)
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_ctrl_c_ends_saves_loads_and_waits(model: Model, session: Session, tmp_path: Path) -> None:
    session.prefill(some_tokens(5000))

    def slow_write(_: bytes) -> int:
        time.sleep(0.01)
        return 1

    class Slow(io.RawIOBase):
        write = staticmethod(slow_write)  # type: ignore[assignment]

    calls: list[Callable[[], object]] = [lambda: session.save_file(Slow())]  # type: ignore[arg-type]
    with model.session() as other:
        task = other.submit(some_tokens(100_000))
        calls.append(lambda: task.wait(60) and list(task))
        for call in calls:
            with pytest.raises(KeyboardInterrupt), killed_after(0.2):
                call()
        task.close()
    session.save(tmp_path / "saved")
