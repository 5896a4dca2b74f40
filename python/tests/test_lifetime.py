"""Closing in any order, use after it, threads, child processes, the end of the process, leaks."""

import gc
import io
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import MODEL, answer, resident_bytes, some_tokens

import waveinfer
from waveinfer import Cancel, KvStore, Model, Runtime, Sampling, Session
from waveinfer._calls import alone


def test_use_after_close_is_an_error() -> None:
    runtime = Runtime()
    model = runtime.open(MODEL)
    session = model.session()
    session.prefill([1, 2, 3])
    task = session.submit(max_tokens=1)
    store = KvStore(runtime, layers=1, query_heads=1, kv_heads=1, head_dim=8)
    metadata = model.metadata
    for each in (task, store, session, model, runtime):
        assert not each.closed
        each.close()
        each.close()
        assert each.closed
    calls = (
        runtime.stats, runtime.device_info, runtime.policies, lambda: runtime.open(MODEL),
        lambda: KvStore(runtime, layers=1, query_heads=1, kv_heads=1, head_dim=8),
        lambda: model.info, lambda: metadata["x"], lambda: len(metadata), lambda: model.tokenize("x"),
        lambda: model.detokenize([1]), model.session, lambda: model.load("x"), lambda: model.token_info(1),
        lambda: model.chat_render([{"role": "user", "content": "x"}]), lambda: model.plan_memory(1),
        session.decode, session.logits, session.tokens, session.fork, session.fork_as, session.stats,
        session.submit, session.set_sampling, session.saved_bytes, lambda: session.prefill([1]),
        lambda: session.append_text("x"), lambda: session.accept(1), lambda: session.truncate(0),
        lambda: session.save("x"), lambda: next(session.stream()), lambda: waveinfer.decode_batch([session]),
        task.poll, task.wait, task.fileno, task.cancel, task.info, lambda: list(task),
        store.seal, store.stats, store.fork, store.saved_bytes, lambda: store.truncate(0),
        lambda: store.append(0, [[[0.0] * 4]], [[[0.0] * 4]]), lambda: store.attend(0, [[[0.0] * 4]]),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(waveinfer.ClosedError, match="is closed"):
            call()


def test_objects_may_be_closed_and_dropped_in_any_order(rng: random.Random) -> None:
    for _ in range(30):
        runtime = Runtime(threads=1, log=lambda _level, _text: None)
        model = runtime.open(MODEL)
        session = model.session(sampling=Sampling(logits=lambda _: None))
        session.prefill(some_tokens(50))
        fork = session.fork()
        task = fork.submit(max_tokens=rng.randrange(1, 1000))
        owners: list[waveinfer.Runtime | Model | Session | waveinfer.Task] = [
            runtime,
            model,
            session,
            fork,
            task,
        ]
        del runtime, model, session, fork, task
        rng.shuffle(owners)
        while owners:
            owner = owners.pop()
            if rng.random() < 0.5:
                owner.close()
            del owner
            if rng.random() < 0.2:
                gc.collect()


def test_what_is_made_outlives_what_made_it() -> None:
    with Runtime() as runtime, runtime.open(MODEL) as model:
        session = model.session()
    session.prefill(some_tokens(10))
    assert len(answer(session)) == 8


def test_another_thread_inside_makes_a_session_busy(session: Session) -> None:
    entered = threading.Event()
    cancel = Cancel()

    def work() -> None:
        with pytest.raises(waveinfer.CancelledError):
            session.prefill(
                some_tokens(200_000), chunk_tokens=64, progress=lambda *_: entered.set(), cancel=cancel
            )

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    for call in (session.decode, session.tokens, session.fork, lambda: session.prefill([1])):
        with pytest.raises(waveinfer.BusyError):
            call()
    session.stats()
    cancel.trigger()
    thread.join()
    session.prefill([1])


class Within:
    """What a call asks something of, once, before it is in the library: another thread's call goes first."""

    def __init__(self, first: Callable[[], object]) -> None:
        self._first = [first]

    def ask(self) -> None:
        while self._first:
            self._first.pop()()

    def __iter__(self) -> Iterator[str]:
        self.ask()
        return iter(["x"])

    def __len__(self) -> int:
        return 1

    def __array__(self, *_: object, **__: object) -> Any:
        self.ask()
        return np.zeros((1, 1, 8), np.float32)


def test_of_two_calls_at_once_one_is_refused_and_none_waits(runtime: Runtime, session: Session) -> None:
    class Stuck(io.RawIOBase):
        def write(self, piece: Any) -> int:
            entered.set()
            over.wait(5)
            return len(piece)

    def saved(owner: Session | KvStore) -> None:
        try:
            owner.save_file(Stuck())  # type: ignore[arg-type]
        except waveinfer.BusyError:
            refused.append("save")
        entered.set()

    def another_first(owner: Session | KvStore) -> Any:
        def first() -> None:
            thread.start()
            assert entered.wait(60)

        thread = threading.Thread(target=saved, args=(owner,))
        threads.append(thread)
        return Within(first)

    session.prefill(some_tokens(50))
    store = KvStore(runtime, layers=1, query_heads=1, kv_heads=1, head_dim=8)
    store.append(0, np.ones((1, 1, 8)), np.ones((1, 1, 8)))
    calls: list[Callable[[], object]] = [
        lambda: store.append(0, another_first(store), np.ones((1, 1, 8))),
        lambda: store.attend(0, another_first(store)),
        lambda: session.set_sampling(Sampling(stops=another_first(session))),
        lambda: session.fork_as(sampling=Sampling(stops=another_first(session))),
        lambda: session.submit(sampling=Sampling(stops=another_first(session)), max_tokens=1),
    ]
    for each in calls:
        entered, over = threading.Event(), threading.Event()
        threads: list[threading.Thread] = []
        refused: list[str] = []
        try:
            each()
        except waveinfer.BusyError:
            refused.append("call")
        over.set()
        threads[0].join()
        assert len(refused) == 1


def test_threads_that_come_at_once_are_never_inside_together(session: Session) -> None:
    inside = worst = calls = 0

    @alone
    def enter(_: Session) -> None:
        nonlocal inside, worst, calls
        inside += 1
        calls += 1
        time.sleep(0)  # another thread's turn, if it had one
        worst = max(worst, inside)
        inside -= 1

    def work() -> None:
        for _ in range(2000):
            try:
                enter(session)
            except waveinfer.BusyError:
                refused.append(1)

    refused: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert worst == 1
    assert calls + len(refused) == 4 * 2000
    enter(session)


def test_a_signal_as_a_turn_is_taken_leaves_its_session_free(session: Session) -> None:
    class Taken(dict[str, Any]):
        def setdefault(self, *given: Any) -> Any:
            place = super().setdefault(*given)
            if place is given[1]:
                raise KeyboardInterrupt
            return place

    session.prefill([1, 2, 3])
    with session.fork() as other:
        for call in (session.decode, lambda: waveinfer.decode_batch([other, session])):
            session._last = Taken(session._last)
            with pytest.raises(KeyboardInterrupt):
                call()
            assert session.tokens().tolist() == other.tokens().tolist() == [1, 2, 3]
        assert len(waveinfer.decode_batch([other, session])) == 2


def test_closing_waits_for_nobody_and_harms_nobody(model: Model) -> None:
    for _ in range(5):
        session = model.session()
        entered = threading.Event()
        cancel = Cancel()

        def work(
            session: Session = session, entered: threading.Event = entered, cancel: Cancel = cancel
        ) -> None:
            with pytest.raises(waveinfer.CancelledError):
                session.prefill(
                    some_tokens(200_000), chunk_tokens=64, progress=lambda *_: entered.set(), cancel=cancel
                )

        thread = threading.Thread(target=work)
        thread.start()
        assert entered.wait(60)
        session.close()
        time.sleep(0.05)
        cancel.trigger()
        thread.join()


def test_one_cancel_ends_many_calls_and_can_be_used_again(model: Model) -> None:
    cancel = Cancel()
    ended: list[int] = []

    def work() -> None:
        with model.session() as session, pytest.raises(waveinfer.CancelledError):
            session.prefill(some_tokens(200_000), cancel=cancel)
        ended.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    cancel.trigger()
    for thread in threads:
        thread.join()
    assert len(ended) == 4
    assert cancel.fired
    with model.session() as session:
        with pytest.raises(waveinfer.CancelledError):
            session.prefill([1], cancel=cancel)
        cancel.reset()
        session.prefill([1], cancel=cancel)
        session.decode(cancel=cancel)
        cancel.trigger()
        with pytest.raises(waveinfer.CancelledError):
            session.decode(cancel=cancel)
        session.decode()


def test_a_cancel_that_fires_at_any_moment_never_ends_another_call(
    session: Session, rng: random.Random
) -> None:
    session.prefill(some_tokens(100))
    for _ in range(100):
        cancel = Cancel()
        timer = threading.Timer(rng.uniform(0, 0.002), cancel.trigger)
        timer.start()
        try:
            for _ in range(3):
                session.decode(cancel=cancel)
        except waveinfer.CancelledError:
            assert cancel.fired
        session.decode()
        timer.join()


def test_a_cancel_that_fires_and_is_reset_as_a_call_ends_does_not_end_the_next_one(session: Session) -> None:
    class Late(set[Any]):
        """The tokens of calls: the reset comes just when there is none any more."""

        def discard(self, token: Any) -> None:
            super().discard(token)
            cancel.reset()

    session.prefill(some_tokens(10))
    cancel = Cancel()
    cancel._tokens = Late()
    cancel.trigger()
    with pytest.raises(waveinfer.CancelledError):
        session.decode(cancel=cancel)
    session.decode()


def test_a_call_lets_other_threads_run(session: Session) -> None:
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.005):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    session.prefill(some_tokens(10_000), chunk_tokens=10_000)
    done.set()
    thread.join()
    assert ticks > 10


def test_handles_are_dead_in_a_child_process(model: Model, session: Session) -> None:
    session.prefill(some_tokens(100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads, which is the point
        child = os.fork()
    if child == 0:
        try:
            with pytest.raises(waveinfer.StateError):
                session.decode()
            with Runtime(threads=1) as runtime, runtime.open(MODEL) as own, own.session() as mine:
                mine.prefill(some_tokens(100))
                mine.decode()
            session.close()
            model.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    session.decode()


AT_THE_END = """
import sys, threading, time
import waveinfer
said = []
runtime = waveinfer.Runtime(log=lambda level, text: said.append(text), log_level=waveinfer.LogLevel.DEBUG)
model = runtime.open(sys.argv[1])
sessions = [model.session(sampling=waveinfer.Sampling(logits=lambda logits: said.append("x"))) for _ in range(3)]
for session in sessions[:2]:
    session.prefill(range(1, 500))
    task = session.submit(notify=lambda: said.append("y"))
    said.append(task)
threading.Thread(target=lambda: sessions[2].prefill([1] * 300_000), daemon=True).start()
time.sleep(0.3)
said.append(said)  # a cycle, for the collector to find
"""


def test_a_process_ends_well_with_everything_open_and_running() -> None:
    for end in ("", "raise SystemExit(0)", "del runtime, model, sessions, task"):
        done = subprocess.run(
            [sys.executable, "-c", AT_THE_END + end, str(MODEL)],
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), done


IN_A_CALLBACK = """
import sys, time
import waveinfer

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(1)

sys.late = Late() # not here: where a callback is, what it sees is never taken apart
who, how = sys.argv[2:]
begun = []

def slow(*_):
    begun.append(who)
    time.sleep(0.3)

log = slow if who == "log" else None
logits = slow if who == "logits" else None
runtime = waveinfer.Runtime(log=log, log_level=waveinfer.LogLevel.DEBUG)
model = runtime.open(sys.argv[1])
endless = waveinfer.Sampling(logits=logits, logit_bias={model.info.eos_token: -float("inf")})
sessions = [model.session(), model.session(sampling=endless)]
tasks = [sessions[0].submit([1] * 300_000), sessions[1].submit([1, 2, 3])]
while tasks[1].info().answer_tokens == 0: # a step within a chunk of the other one, from now on
    time.sleep(0.001)
begun.clear()
while log is None and not begun:
    time.sleep(0.001)
if how == "close":
    for each in (*tasks, *sessions):
        each.close()
elif how == "drop":
    del tasks, sessions
"""


@pytest.mark.parametrize(
    ("who", "how"),
    [("logits", "keep"), ("log", "keep"), ("logits", "close"), ("logits", "drop")],
)
def test_a_process_ends_well_while_the_engine_is_in_a_callback(who: str, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CALLBACK, str(MODEL), who, how],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), done


IN_MEMORY = """
import mmap, sys, time
import waveinfer
runtime = waveinfer.Runtime()
for how in ("drop",) * 30 + ("close", "end"):
    with open(sys.argv[1], "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    model = runtime.open_memory(memory)
    endless = waveinfer.Sampling(logit_bias={model.info.eos_token: -float("inf")})
    session = model.session(sampling=endless)
    task = session.submit([1, 2, 3])
    while task.info().state != waveinfer.TaskState.WRITING:
        time.sleep(0.001)
    time.sleep(0.01)
    if how == "drop":
        del task, session, model, memory
    elif how == "close":
        task.close()
        session.close()
        model.close()
        memory.close()  # nobody has it any more
"""


def test_memory_of_a_model_stays_until_the_engine_has_left_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_MEMORY, str(MODEL)], capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), done


CTRL_C = """
import signal, sys, threading, os
import waveinfer
with waveinfer.Runtime() as runtime, runtime.open(sys.argv[1]) as model, model.session() as session:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    session.prefill([1] * 300_000)
"""


def test_ctrl_c_ends_a_program_as_it_ends_any_of_python_s() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, str(MODEL)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == -2
    assert done.stderr.rstrip().endswith(b"KeyboardInterrupt")


def test_a_library_that_is_not_there_is_an_import_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import waveinfer"],
        env={**os.environ, "WAVEINFER_LIBRARY": "/no/such/libwaveinfer.so"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"ImportError: libwaveinfer cannot be loaded (as WAVEINFER_LIBRARY says)" in done.stderr


def test_ten_thousand_sessions_leave_nothing_behind(model: Model) -> None:
    def some(count: int) -> None:
        for i in range(count):
            session = model.session(sampling=Sampling(seed=i, stops=["x"], logits=lambda _: None))
            if i % 10 == 0:
                session.append_text("Hello", add_bos=True)
                session.decode()
            if i % 3 == 0:
                session.close()

    some(2000)
    before = resident_bytes()
    some(10_000)
    assert resident_bytes() - before < 2_000_000


def test_calls_that_fail_leave_nothing_behind(runtime: Runtime, model: Model, session: Session) -> None:
    def some(count: int) -> None:
        cancel = Cancel()
        cancel.trigger()
        for _ in range(count):
            for call in (
                session.decode,
                lambda: runtime.open("missing"),
                lambda: runtime.open(MODEL, cancel=cancel),
                lambda: model.session(kv_budget_bytes=-1),
                lambda: model.chat_render([{"role": "x", "content": "y"}], variables={"messages": 1}),
            ):
                with pytest.raises(waveinfer.Error):
                    call()

    some(200)
    before = resident_bytes()
    some(1000)
    assert resident_bytes() - before < 2_000_000
    assert runtime.stats().sessions == 1
