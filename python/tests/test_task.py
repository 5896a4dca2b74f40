"""Tasks, polled, waited for and awaited."""

import _thread
import asyncio
import contextlib
import gc
import itertools
import math
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import MODEL, answer, some_tokens

import waveinfer
from waveinfer import Cancel, Event, EventKind, Model, Runtime, Sampling, Session, Task, TaskState
from waveinfer.task import _Batch


def expected(model: Model, seed: int, count: int) -> list[int]:
    with model.session() as session:
        session.prefill(some_tokens(300, seed))
        tokens = [event.token for event in session.stream(count)]
        return [*tokens, -1] if len(tokens) == count else tokens


def has_ended(task: Task) -> None:
    while task.info().state < TaskState.DONE:
        time.sleep(0.001)


def test_a_task_gives_the_tokens_of_plain_calls(model: Model, session: Session) -> None:
    with session.submit(some_tokens(300), max_tokens=10) as task:
        events = list(task)
        assert [event.token for event in events] == expected(model, 1, 10)
        assert (events[-1].kind, events[-1].token) == (EventKind.LIMIT, -1)
        info = task.info()
        assert (info.state, info.prompt_tokens, info.answer_tokens) == (TaskState.DONE, 300, 10)
        assert task.ended
        assert task.poll() == []
        assert list(task) == []
    assert session.stats().tokens == 310
    session.decode()


def test_texts_are_prompts_too(model: Model, session: Session) -> None:
    with session.submit("In the beginning", add_bos=True, max_tokens=3) as task:
        list(task)
    assert session.tokens()[:-3].tolist() == model.tokenize("In the beginning", add_bos=True).tolist()
    with session.submit(max_tokens=2, priority=8, sampling=Sampling(top_logprobs=3)) as task:
        assert len(next(iter(task)).top) == 3
        list(task)
    with pytest.raises(waveinfer.ArgumentError):
        session.submit(priority=9)
    with pytest.raises(waveinfer.ArgumentError):
        session.submit(priority=2**40)


def test_a_loop_that_is_left_early_takes_no_more_events_than_it_gave(model: Model) -> None:
    async def some_of(task: Task, count: int) -> list[Event]:
        return [event async for event in first_of(task, count)]

    async def first_of(task: Task, count: int) -> AsyncIterator[Event]:
        async for event in task:
            yield event
            count -= 1
            if not count:
                break

    whole = expected(model, 1, 150)
    for awaited in (False, True):
        with model.session() as session, session.submit(some_tokens(300), max_tokens=150) as task:
            has_ended(task)
            given: list[Event] = []
            for count in (1, 2, 70):
                given += asyncio.run(some_of(task, count)) if awaited else itertools.islice(task, count)
                assert select.select([task], [], [], 0)[0], "there are events, and it is not readable"
                assert task.wait(0)
                assert not task.ended
            loop = iter(task)
            given += [next(loop), next(loop), *task.poll()]
            given += asyncio.run(consume(task)) if awaited else list(loop)
            assert [event.token for event in given] == whole
            assert task.ended


def test_what_a_signal_handler_raises_loses_no_event(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = expected(model, 1, 150)
    made = waveinfer.session.event_of
    for count in (0, 1, 63):  # of them are made of the library's when it raises
        calls = iter(range(1000))

        def interrupted(event: object, count: int = count, calls: Iterator[int] = calls) -> Event:
            if next(calls) == count:
                raise KeyboardInterrupt
            return made(event)

        monkeypatch.setattr("waveinfer.task.event_of", interrupted)
        with model.session() as each, each.submit(some_tokens(300), max_tokens=150) as task:
            has_ended(task)
            with pytest.raises(KeyboardInterrupt):
                task.poll()
            assert task.wait(0)
            assert [event.token for event in [*task.poll(), *task]] == whole
    monkeypatch.undo()


def test_events_that_an_interrupted_poll_has_fetched_are_not_waited_for(session: Session) -> None:
    steps, writing, over = itertools.count(), threading.Event(), threading.Event()

    def logits(_: object) -> None:
        if next(steps) == 3:
            writing.set()
            over.wait(60)

    with session.submit(some_tokens(10), max_tokens=5, sampling=Sampling(logits=logits)) as task:
        assert writing.wait(60)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("waveinfer.task.event_of", fail)
            with pytest.raises(Mine):
                task.poll()
        try:
            assert task.wait(0)
            assert task.poll()
            assert not task.wait(0)
        finally:
            over.set()


def poll_all(task: Task, given: list[Event]) -> None:
    while not task.ended:
        given += task.poll()


# Python 3.10 looks for signals between the end of a call and the use of its result, but not where C made the call.
def poll_all_from_c(task: Task, given: list[Event]) -> None:
    given.extend(itertools.chain.from_iterable(iter(task.poll, [])))


# Anywhere: a list takes what an iterator gives without an instruction between the two.
def iterate(task: Task, given: list[Event]) -> None:
    given.extend(task)


@pytest.mark.parametrize("fetch", [iterate, poll_all_from_c if sys.version_info < (3, 11) else poll_all])
def test_a_signal_at_any_moment_loses_no_event(
    model: Model, session: Session, fetch: Callable[[Task, list[Event]], None]
) -> None:
    whole, raising = expected(model, 1, 150), False

    def handler(*_: object) -> None:
        nonlocal raising
        if raising:
            raising = False
            raise Mine

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for trial in range(20):
            given: list[Event] = []
            delay, raised = 0.0001 + 0.00001 * trial, 0
            with session.submit(some_tokens(300), max_tokens=150) as task:
                has_ended(task)
                while not task.ended:
                    try:
                        raising = True
                        signal.setitimer(signal.ITIMER_REAL, delay)
                        fetch(task, given)
                        raising = False
                    except Mine:
                        raised += 1
                        delay *= 1.05  # so that it ends, however slow
            assert [event.token for event in given] == whole, (trial, raised)
            session.truncate(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("fetch", [poll_all, poll_all_from_c])
def test_a_signal_as_a_poll_returns_loses_no_event(
    model: Model,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    fetch: Callable[[Task, list[Event]], None],
) -> None:
    if fetch is poll_all and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 looks for signals before a caller has what a call returned")

    # Comes as the list takes the last event: without a call of Python's, so that nothing looks for it yet.
    def signalled(events: list[Event]) -> Iterator[object]:
        return itertools.chain(events, filter(None, map(_thread.interrupt_main, [signal.SIGUSR1])))

    given: list[Event] = []
    before = signal.signal(signal.SIGUSR1, fail)
    try:
        with session.submit(some_tokens(300), max_tokens=10) as task:
            has_ended(task)
            monkeypatch.setattr("waveinfer.task.iter", signalled, raising=False)
            with pytest.raises(Mine):
                fetch(task, given)
            assert [event.token for event in given] == expected(model, 1, 10)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_that_polls_finds_the_task_busy(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def poll(*_: object) -> None:
        try:
            said.append(str(task.poll()))
        except waveinfer.BusyError as error:
            said.append(error.message)

    made = waveinfer.session.event_of

    def signalled(event: object) -> Event:
        signal.raise_signal(signal.SIGUSR1)
        return made(event)

    before = signal.signal(signal.SIGUSR1, poll), signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)  # ends what waits for itself
    try:
        with session.submit(some_tokens(300), max_tokens=3) as task:
            has_ended(task)
            monkeypatch.setattr("waveinfer.task.event_of", signalled)
            assert len(task.poll()) == 4
            assert said == ["Task is in use by another call"] * 4
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGALRM, before[1])


def test_a_session_is_busy_until_its_task_has_ended(session: Session) -> None:
    with session.submit(some_tokens(300)) as task:
        with pytest.raises(waveinfer.BusyError):
            session.decode()
        with pytest.raises(waveinfer.BusyError):
            session.submit()
        task.cancel()
        assert [event.kind for event in task][-1] is EventKind.CANCELLED
        assert task.info().state is TaskState.CANCELLED


def test_a_task_is_waited_for_by_selectors(session: Session) -> None:
    with session.submit(some_tokens(300), max_tokens=5) as task:
        poll = select.poll()
        poll.register(task, select.POLLIN)
        events: list[Event] = []
        while not task.ended:
            assert poll.poll(60_000)
            events += task.poll()
        assert len(events) == 6


def test_a_wait_ends_with_its_time(session: Session) -> None:
    with session.submit(some_tokens(100_000)) as task:
        started = time.monotonic()
        assert not task.wait(0)
        assert not task.wait(0.12)
        assert 0.1 < time.monotonic() - started < 5
        assert not task.wait(-math.inf)
        threading.Timer(0.2, task.cancel).start()
        assert task.wait(math.inf)
        assert task.wait(1e300)


def test_notify_wakes_the_host(session: Session) -> None:
    woken = threading.Event()
    with session.submit(some_tokens(10), max_tokens=3, notify=woken.set) as task:
        assert woken.wait(60)
        list(task)


class Mine(Exception):
    """Of a callback's own."""


def fail(*_: object) -> None:
    raise Mine


def test_exceptions_of_callbacks_end_a_task_and_are_raised_by_it(session: Session) -> None:
    with session.submit(some_tokens(10), notify=fail) as task, pytest.raises(Mine):
        list(task)
    with session.submit(some_tokens(10), sampling=Sampling(logits=fail)) as task, pytest.raises(Mine):
        list(task)
    session.set_sampling()
    session.decode()


def test_a_callback_ends_one_task_of_the_forks_that_share_it(session: Session) -> None:
    calls = 0

    def logits(_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 21:
            raise Mine

    session.prefill(some_tokens(50))
    session.set_sampling(Sampling(logits=logits))
    ended = 0
    with session.fork() as fork, session.submit(max_tokens=30) as one, fork.submit(max_tokens=30) as other:
        for task in (one, other):
            try:
                assert len(list(task)) == 31
            except Mine:
                ended += 1
    assert ended == 1


def test_an_answer_ends_without_its_last_event(session: Session) -> None:
    session.prefill(some_tokens(50))

    def lost(task: waveinfer.Task) -> None:  # as where the engine had no memory for it
        has_ended(task)
        assert task._ask(_Batch(), 64)[-1].kind is EventKind.LIMIT

    async def awaited(task: waveinfer.Task) -> list[Event]:
        return [event async for event in task]

    with session.submit(max_tokens=3) as task:
        lost(task)
        assert [event.kind for event in task] == [EventKind.END]
        assert task.ended
        assert task.poll() == []
    with session.submit(max_tokens=3) as task:
        lost(task)
        assert [event.kind for event in asyncio.run(awaited(task))] == [EventKind.END]


def test_what_a_callback_raised_in_one_task_is_none_of_the_next_one_s(session: Session) -> None:
    failing = True

    def logits(_: object) -> None:
        if failing:
            raise Mine

    session.set_sampling(Sampling(logits=logits))
    with session.submit(some_tokens(10)) as task:
        while task.info().state < TaskState.DONE:
            time.sleep(0.001)
    failing = False
    with session.submit(max_tokens=2) as task:
        assert len(list(task)) == 3


def test_closing_a_task_ends_who_waits_for_it(model: Model) -> None:
    async def run() -> None:
        with model.session() as session:
            task = session.submit(some_tokens(200_000))
            waiting = asyncio.create_task(consume(task))
            await asyncio.sleep(0.2)
            task.close()
            with pytest.raises(waveinfer.ClosedError):
                await asyncio.wait_for(waiting, 20)

    asyncio.run(run())

    ended: list[type] = []

    def work(task: waveinfer.Task) -> None:
        try:
            list(task)
        except waveinfer.Error as error:
            ended.append(type(error))

    with model.session() as session:
        task = session.submit(some_tokens(200_000))
        thread = threading.Thread(target=work, args=(task,), daemon=True)
        thread.start()
        time.sleep(0.2)
        task.close()
        thread.join(20)
        assert ended == [waveinfer.ClosedError]


def test_a_task_is_closed_by_what_the_engine_calls(runtime: Runtime) -> None:
    made, closed = threading.Event(), threading.Event()
    task: waveinfer.Task

    def close(*_: object) -> None:
        made.wait(60)
        task.close()
        closed.set()

    with runtime.open_memory(MODEL.read_bytes(), weights=waveinfer.Weights.MAPPED) as model:
        for by_notice in (True, False):
            made.clear()
            closed.clear()
            with model.session() as session:
                session.prefill([1, 2, 3])
                if by_notice:
                    task = session.submit(notify=close)
                else:
                    task = session.submit(sampling=Sampling(logits=close))
                made.set()
                assert closed.wait(20), "the engine waits for itself"
                task.close()
    with runtime.open(MODEL) as model, model.session() as session:
        assert len(list(session.submit([1, 2, 3], max_tokens=2))) == 3


def test_what_the_engine_calls_cannot_wait_for_it(model: Model) -> None:
    for by_notice in (True, False):
        made, waited = threading.Event(), threading.Event()
        said: list[str] = []
        tasks: list[waveinfer.Task] = []

        def wait(
            *_: object,
            made: threading.Event = made,
            waited: threading.Event = waited,
            said: list[str] = said,
            tasks: list[waveinfer.Task] = tasks,
        ) -> None:
            made.wait(60)
            waits: list[Callable[[], object]] = [
                tasks[0].wait,
                lambda: tasks[0].wait(5),
                lambda: list(tasks[0]),
            ]
            for each in waits if not waited.is_set() else []:
                with pytest.raises(waveinfer.StateError) as error:
                    each()
                said.append(error.value.message)
            waited.set()

        # What it waits for has no events while the engine is here.
        with model.session() as reading, model.session() as session:
            session.prefill([1, 2, 3])
            if by_notice:
                task = session.submit(max_tokens=3, notify=wait)
            else:
                task = session.submit(max_tokens=3, sampling=Sampling(logits=wait))
            tasks.append(reading.submit(some_tokens(200_000)))
            made.set()
            assert waited.wait(20), "the engine waits for itself"
            tasks[0].cancel()
            assert len(list(task)) == 4
            assert list(tasks[0])[-1].kind is EventKind.CANCELLED
        assert len(said) == 3
        assert "the engine waits for this callback" in said[0]


def test_no_tokens_are_none_and_never_without_limit(session: Session) -> None:
    session.prefill(some_tokens(10))

    async def stream(max_tokens: int) -> list[Event]:
        return [event async for event in session.stream_async(max_tokens=max_tokens)]

    assert list(session.stream(0)) == []
    for call in (
        lambda: session.submit(max_tokens=0),
        lambda: session.submit(max_tokens=-1),
        lambda: asyncio.run(stream(0)),
        lambda: asyncio.run(stream(-1)),
        lambda: session.stream(-1),
    ):
        with pytest.raises(waveinfer.ArgumentError, match="max_tokens"):
            call()
    assert session.stats().tokens == 10
    assert len(list(session.stream(1))) == 1


def test_a_task_that_fails_raises_what_a_call_would_have_raised(model: Model) -> None:
    with model.session(kv_budget_bytes=1_000_000) as session:
        with session.submit(some_tokens(20_000)) as task, pytest.raises(waveinfer.BudgetError):
            list(task)
        assert task.closed


def test_a_task_that_fails_before_its_sampling_took_effect_leaves_the_session_its_own(model: Model) -> None:
    called: list[bool] = []
    with model.session(sampling=Sampling(logits=lambda _: called.append(True))) as session:
        session.prefill(some_tokens(10))
        for _ in range(3):
            own = Sampling(logits=fail)
            with session.submit(max_tokens=2**40, sampling=own) as task, pytest.raises(waveinfer.BudgetError):
                list(task)
            del own, task
            gc.collect()
        assert session.decode().kind is EventKind.TOKEN
        assert called == [True]
        with session.submit(max_tokens=2) as task:  # its failure is the sampler's that is in force
            assert len(list(task)) == 3
        with session.fork() as fork:
            session.close()
            gc.collect()
            fork.decode()
        assert called == [True] * 4


def test_a_session_keeps_no_callback_that_is_not_in_force_any_more(session: Session) -> None:
    class Callback:
        def __call__(self, _: object) -> None:
            pass

    session.prefill(some_tokens(10))
    past: list[weakref.ref[Callback]] = []
    for fetched in (True, False) * 4:
        callback = Callback()
        past.append(weakref.ref(callback))
        with session.submit(max_tokens=2, sampling=Sampling(logits=callback)) as task:
            while task.info().state < TaskState.DONE:
                time.sleep(0.001)
            if fetched:
                list(task)
        del callback, task
    gc.collect()
    assert [each() is None for each in past] == [True] * 6 + [False] * 2


def test_an_empty_session_needs_a_prompt(session: Session) -> None:
    with pytest.raises(waveinfer.StateError):
        session.submit()


def test_many_answers_are_awaited_at_once(model: Model) -> None:
    async def ask(seed: int) -> list[int]:
        with model.session() as session:
            return [
                event.token async for event in session.stream_async(some_tokens(300, seed), max_tokens=20)
            ]

    async def ask_all() -> list[list[int]]:
        return await asyncio.gather(*(ask(seed) for seed in range(8)))

    for seed, tokens in enumerate(asyncio.run(ask_all())):
        assert tokens == expected(model, seed, 20)


def test_cancelling_an_asyncio_task_cancels_the_native_one(model: Model) -> None:
    async def run() -> None:
        session, writing = model.session(), asyncio.Event()

        async def endless() -> None:
            async for _ in session.stream_async(some_tokens(300)):
                writing.set()

        asking = asyncio.create_task(endless())
        await asyncio.wait_for(writing.wait(), 60)
        with pytest.raises(waveinfer.BusyError):
            session.decode()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        session.decode()  # free at once

        reading = asyncio.create_task(consume(session.submit(some_tokens(200_000))))
        await asyncio.sleep(0.2)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reading, 0.1)
        session.close()

    asyncio.run(run())


async def consume(task: waveinfer.Task) -> list[Event]:
    return [event async for event in task]


def test_events_that_are_fetched_beside_an_awaiting_loop_end_it(session: Session) -> None:
    async def run(fetch: Callable[[Task], object]) -> list[Event]:
        with session.submit(some_tokens(200_000)) as task:
            waiting = asyncio.create_task(consume(task))
            await asyncio.sleep(0.05)
            task.cancel()
            has_ended(task)  # and this loop has not looked
            fetch(task)
            return await asyncio.wait_for(waiting, 20)

    def poll_in_a_thread(task: Task) -> None:
        thread = threading.Thread(target=task.poll)
        thread.start()
        thread.join()

    def poll_interrupted(task: Task) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("waveinfer.task.event_of", fail)
            with pytest.raises(Mine):
                task.poll()

    assert asyncio.run(run(Task.poll)) == []
    assert asyncio.run(run(poll_in_a_thread)) == []
    assert asyncio.run(run(list)) == []
    assert [event.kind for event in asyncio.run(run(poll_interrupted))] == [EventKind.CANCELLED]


def test_ending_a_task_beside_an_awaiting_loop_ends_that(session: Session) -> None:
    async def run() -> None:
        with session.submit(some_tokens(200_000)) as task:
            ending = [asyncio.create_task(task.end_async()) for _ in range(2)]
            await asyncio.wait_for(asyncio.gather(*ending, consume(task)), 20)

    asyncio.run(run())


def test_each_event_goes_to_one_of_the_loops_that_await_it(model: Model, session: Session) -> None:
    async def run() -> None:
        with session.submit(some_tokens(300), max_tokens=150) as task:
            given = await asyncio.wait_for(asyncio.gather(*(consume(task) for _ in range(3))), 60)
            assert sorted(event.token for each in given for event in each) == sorted(expected(model, 1, 150))
            assert not asyncio.get_running_loop().remove_reader(task.fileno())

    asyncio.run(run())


def test_event_loops_in_many_threads_await_one_task(model: Model, session: Session) -> None:
    given: list[Event] = []

    async def take(task: Task) -> None:
        while not task.ended:
            with contextlib.suppress(waveinfer.BusyError):  # of two that fetch at once
                async for event in task:
                    given.append(event)  # noqa: PERF401 (an exception leaves what was given)

    with session.submit(some_tokens(300), max_tokens=150) as task:
        threads = [threading.Thread(target=asyncio.run, args=(take(task),), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert sorted(event.token for event in given) == sorted(expected(model, 1, 150))


def test_of_two_that_await_a_task_one_may_leave(session: Session) -> None:
    async def run() -> None:
        with session.submit(some_tokens(200_000)) as task:
            first, second, third = (asyncio.create_task(consume(task)) for _ in range(3))
            await asyncio.sleep(0.05)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            ended = await asyncio.wait_for(asyncio.gather(first, third), 20)
            assert [event.kind for each in ended for event in each] == [EventKind.CANCELLED]

    asyncio.run(run())


def test_a_loop_that_was_closed_while_it_awaited_a_task_keeps_nobody(session: Session) -> None:
    with session.submit(some_tokens(200_000)) as task:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # a task that is pending when it goes
        waiting = loop.create_task(consume(task))
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()
        task.cancel()
        assert [event.kind for event in task] == [EventKind.CANCELLED]
        del waiting, loop
        gc.collect()
        assert not task._awaiting


def test_leaving_a_stream_early_frees_its_session(session: Session) -> None:
    async def run() -> None:
        stream = session.stream_async(some_tokens(300))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        session.decode()

    asyncio.run(run())


def test_leaving_a_task_s_events_early_leaves_the_task_as_it_is(model: Model, session: Session) -> None:
    endless = Sampling(logit_bias={model.info.eos_token: -float("inf")})

    async def run() -> None:
        with session.submit(some_tokens(300), sampling=endless) as task:
            async for _ in task:
                break
            gc.collect()
            await asyncio.sleep(0.05)  # in which the loop closes what is left of it
            after = task.info().answer_tokens + 200
            events = 0
            async for event in task:
                assert event.kind is EventKind.TOKEN
                events += 1
                if events > after:
                    break

    asyncio.run(run())


def test_blocking_calls_have_variants_beside_the_loop(session: Session, tmp_path: object) -> None:
    async def run() -> None:
        with Runtime() as runtime, await runtime.open_async(MODEL) as model, model.session() as mine:
            await mine.append_text_async("In the beginning", add_bos=True)
            await mine.prefill_async(some_tokens(100))
            await mine.save_async(f"{tmp_path}/saved")
            with await model.load_async(f"{tmp_path}/saved") as loaded, await mine.fork_as_async() as fork:
                assert answer(loaded) == answer(fork) == answer(mine)

        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        reading = asyncio.create_task(session.prefill_async(some_tokens(200_000)))
        await asyncio.sleep(0.3)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert ticks > 5
        assert session.stats().tokens == 0
        session.prefill([1])
        ticking.cancel()

    asyncio.run(run())


def test_a_call_that_waits_for_a_thread_is_cancelled_at_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    with ThreadPoolExecutor(1) as one:
        monkeypatch.setattr("waveinfer._calls._beside", one)
        one.submit(over.wait, 60)

        async def run() -> None:
            reading = asyncio.create_task(session.prefill_async([1]))
            await asyncio.sleep(0.05)
            reading.cancel()
            done, _ = await asyncio.wait([reading], timeout=10)
            over.set()
            assert done
            assert reading.cancelled()

        asyncio.run(run())
    assert session.stats().tokens == 0


def test_a_full_executor_of_the_loop_s_keeps_nobody_waiting(session: Session) -> None:
    over = threading.Event()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.run_in_executor(None, over.wait, 60)
        try:
            await asyncio.wait_for(session.prefill_async([1]), 20)
        finally:
            over.set()

    asyncio.run(run())
    assert session.stats().tokens == 1


def test_a_call_that_is_cancelled_twice_has_ended(session: Session) -> None:
    from waveinfer._calls import call_async

    ended: list[bool] = []
    logged: list[object] = []

    def slow(cancel: Cancel) -> None:
        while not cancel.fired:
            time.sleep(0.001)
        time.sleep(0.2)
        ended.append(True)
        raise Mine

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        working = asyncio.create_task(call_async(slow))
        reading = asyncio.create_task(session.prefill_async(some_tokens(200_000)))
        for _ in range(3):
            await asyncio.sleep(0.03)
            working.cancel()
            reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert ended == [True]
        with pytest.raises(asyncio.CancelledError):
            await reading
        session.prefill([1])  # free
        del working, reading
        gc.collect()
        await asyncio.sleep(0.01)

    asyncio.run(run())
    gc.collect()
    assert logged == []


def test_a_child_process_has_threads_of_its_own_beside_its_loop() -> None:
    code = """
import asyncio, os, warnings
from waveinfer._calls import call_async
warnings.simplefilter("ignore") # Python's own, of a fork beside threads
asyncio.run(call_async(lambda _: None))
child = os.fork()
if not child:
    asyncio.run(asyncio.wait_for(call_async(lambda _: None), 20))
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_an_exception_of_a_callback_is_raised_where_events_are_awaited(session: Session) -> None:
    async def run() -> None:
        with pytest.raises(Mine):
            async for _ in session.stream_async(some_tokens(10), sampling=Sampling(logits=fail)):
                pass

    asyncio.run(run())
