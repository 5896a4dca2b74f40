"""What a decode step costs in Python over the same step in C.

    WAVEINFER_LIBRARY=BUILD/lib/libwaveinfer.so bench/overhead.py MODEL

The same steps of forks of one session in turns: in a loop of C (overhead.c, built with the system's cc), in a
loop of Python, and in one that has a Cancel; and as a task of the engine's, whose descriptor a loop of C waits
for, and asyncio. Of each loop's time the library's own, which it counts (decode_ns), is taken off; what is left
is what the language costs. Medians of many turns.
"""

import asyncio
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import waveinfer
from waveinfer._abi import ffi

TOP = Path(__file__).resolve().parents[2]
STEPS, TURNS = 100, 50


Loop = Callable[[waveinfer.Session], int]


def build_c() -> tuple[Loop, Loop]:
    """Compiles overhead.c against the library that is loaded already: its steps, and those of a task."""
    library = Path(os.environ["WAVEINFER_LIBRARY"]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", "-I", str(TOP / "include")]
        where = ["-o", f"{folder}/c.so", f"-Wl,-rpath,{library.parent}"]
        subprocess.run(["cc", *flags, *where, Path(__file__).with_suffix(".c"), library], check=True)
        c = ctypes.CDLL(f"{folder}/c.so")

    def loop(function: Any) -> Loop:
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int32], ctypes.c_int64
        return lambda session: int(function(int(ffi.cast("uintptr_t", session._use().cell[0])), STEPS))

    return loop(c.decode_in_c), loop(c.decode_as_task_in_c)


def in_python(session: waveinfer.Session) -> int:
    started = time.perf_counter_ns()
    for _ in range(STEPS):
        session.decode()
    return time.perf_counter_ns() - started


def with_cancel(session: waveinfer.Session) -> int:
    cancel = waveinfer.Cancel()
    started = time.perf_counter_ns()
    for _ in range(STEPS):
        session.decode(cancel=cancel)
    return time.perf_counter_ns() - started


def in_asyncio(session: waveinfer.Session) -> int:
    async def run() -> int:
        started = time.perf_counter_ns()
        async for _ in session.stream_async(max_tokens=STEPS):
            pass
        return time.perf_counter_ns() - started

    return asyncio.run(run())


def main(path: str) -> None:
    in_c, as_task_in_c = build_c()
    loops: dict[str, Loop] = {"C": in_c, "Python": in_python, "Python, Cancel": with_cancel}
    tasks: dict[str, Loop] = {"C, a task": as_task_in_c, "asyncio": in_asyncio}
    loops |= tasks
    whole: dict[str, list[float]] = {name: [] for name in loops}
    rest: dict[str, list[float]] = {name: [] for name in loops}
    with waveinfer.Runtime() as runtime, runtime.open(path) as model, model.session() as session:
        session.prefill(range(1, 101))
        for _ in range(TURNS):
            for name, loop in loops.items():
                with session.fork() as fork:
                    took = loop(fork)
                    assert took > 0
                    assert fork.stats().decode_steps >= STEPS - 1 or name in tasks
                    whole[name].append(took / STEPS / 1e3)
                    rest[name].append((took - fork.stats().decode_ns) / STEPS / 1e3)
    print(f"{'µs a step':<16}{'whole':>10}{'without the library':>22}{'over C':>10}")
    for name in loops:
        median = statistics.median(rest[name])
        base = statistics.median(rest["C, a task" if name in tasks else "C"])
        print(f"{name:<16}{statistics.median(whole[name]):>10.2f}{median:>22.2f}{median - base:>10.2f}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or "WAVEINFER_LIBRARY" not in os.environ:
        sys.exit("usage: WAVEINFER_LIBRARY=BUILD/lib/libwaveinfer.so overhead.py MODEL")
    main(sys.argv[1])
