"""The runtime: threads, memory budget, log. Everything else is made from one."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from typing import Any, BinaryIO

from ._abi import ffi
from ._calls import (
    Cancel,
    Handle,
    Owner,
    Target,
    call,
    call_async,
    keep_log,
    on_log,
    on_log_release,
    on_progress,
)
from ._library import lib
from ._streams import reader_struct
from ._values import Arguments, Path, path_bytes, read, result
from .model import Model
from .params import BindThreads, BufferManager, HugePages, LogLevel, Precision, Weights
from .stats import DeviceInfo, PolicyInfo, RuntimeStats

Progress = Callable[[int, int], object]
"""Called with what is done and the total, on the thread that made the call. An exception ends the call and is
raised by it."""

Log = Callable[[LogLevel, str], object]
"""Called with a message of one line from any thread that is inside a call, or from one of the runtime's own."""

_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}


def _log_function(log: Log | logging.Logger) -> Callable[[int, str], object]:
    if isinstance(log, logging.Logger):
        logger = log
        return lambda level, message: logger.log(_LEVELS.get(level, logging.INFO), "%s", message)
    function = log
    known = {int(level): level for level in LogLevel}  # a newer library may have others
    return lambda level, message: function(known.get(level, LogLevel.INFO), message)


class Runtime(Owner):
    """Threads, a memory budget and a log; one per program is usual.

    Any number of threads may use it. Closing it leaves models, sessions and stores made from it alone.

    threads: that work; 0: the physical cores this process may use
    device: "cpu"; "cuda:N", or "cuda" for the first: see `devices`
    kv_budget_bytes: most that KV, indexes and tails of all sessions and stores together may take; 0: 80 % of
        the memory this process may use; on a device, of its memory what is free, but for a fifth or, where that
        is less, 4 GiB, and for what weights and scratch take then
    log: a function or a logger; an exception of it ends the call that it is raised in
    nice: 0 to 19, added to the nice value of the runtime's own threads
    task_wait_ms: tasks that write wait at most so long for prompts that others read; 0: 50
    spill_folder: on a local disk, for keys and values that fast memory has no room for; not on a device, whose
        slow tier is pinned memory of the host's
    spill_bytes: at most, in that folder's file; 0: as the disk has room; on a device, in that pinned memory; 0:
        80 % of the memory this process may use
    Errors: UnsupportedError for what is no name of a device, and for a spill_folder beside one; DeviceError, with
    the reason, for a device that is not there or cannot be used; FileError for a spill_folder in which no file can
    be made.
    """

    def __init__(
        self,
        *,
        threads: int = 0,
        device: str | None = None,
        kv_budget_bytes: int = 0,
        huge_pages: HugePages = HugePages.AUTO,
        bind_threads: BindThreads = BindThreads.AUTO,
        log: Log | logging.Logger | None = None,
        log_level: LogLevel = LogLevel.NONE,
        nice: int = 0,
        task_wait_ms: int = 0,
        spill_folder: Path | None = None,
        spill_bytes: int = 0,
        buffer_manager: BufferManager = BufferManager.AUTO,
    ) -> None:
        arguments = Arguments()
        params = arguments.struct(
            "wi_runtime_params",
            threads=threads,
            device=arguments.name("device", device),
            kv_budget_bytes=kv_budget_bytes,
            huge_pages=huge_pages,
            bind_threads=bind_threads,
            log_level=log_level,
            nice=nice,
            task_wait_ms=task_wait_ms,
            spill_bytes=spill_bytes,
            buffer_manager=buffer_manager,
        )
        if spill_folder is not None:
            params.spill_folder, _ = arguments.text(path_bytes(spill_folder) + b"\0")
        target = None
        if log is not None:
            target = Target(_log_function(log))
            params.log, params.log_user, params.log_release = on_log, target.user, on_log_release
            keep_log(target)  # until log_release
        handle = Handle("wi_runtime", lib.wi_runtime_release)
        try:
            call(lambda _, error: lib.wi_runtime_create(params, handle.cell, error), into=handle)
        finally:
            if target is not None and not handle.cell[0]:
                on_log_release(target.user)
        super().__init__(handle)

    def open(
        self,
        path: Path,
        *,
        precision: Precision = Precision.FAST,
        weights: Weights = Weights.MAPPED,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> Model:
        """Opens a model: a .gguf file (of a split set, the first), or a folder with config.json,
        tokenizer.json and *.safetensors. The file must not change while the model lives, unless its weights
        are copied. Architectures llama, qwen2 and qwen3; weights f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1,
        q2_K, q3_K, q4_K, q5_K, q6_K, of which a device takes f32, f16, bf16, q8_0, q4_0, q4_K, q5_K and q6_K.

        precision: how its sessions multiply
        progress: bytes of the weights looked at or copied, bytes in all; at least every 250 ms
        Errors: FileError, CancelledError, FormatError, UnsupportedError, OutOfMemoryError. Any thread.
        """
        name = path_bytes(path)
        return self._open(
            lambda runtime, params, handle, token, error: lib.wi_model_open(
                runtime, name, params, token, handle, error
            ),
            precision,
            weights,
            progress,
            cancel,
        )

    def open_memory(
        self,
        data: bytes | bytearray | memoryview | mmap.mmap,
        *,
        precision: Precision = Precision.FAST,
        weights: Weights = Weights.MAPPED,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> Model:
        """Opens a model from a whole GGUF file in memory, aligned to 8 bytes unless the weights are copied.

        The weights are used where they lie: the memory is kept, and must stay as it is, while the model or a
        session of it lives. The rest: as `open`.
        """
        memory = ffi.from_buffer(data)
        return self._open(
            lambda runtime, params, handle, token, error: lib.wi_model_open_memory(
                runtime, memory, len(memory), params, token, handle, error
            ),
            precision,
            weights,
            progress,
            cancel,
            *([] if weights == Weights.COPIED else [memory]),
        )

    def open_file(
        self,
        file: BinaryIO,
        size: int | None = None,
        *,
        precision: Precision = Precision.FAST,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> Model:
        """Opens a model from a whole GGUF file that is read from a binary file object, once and in order.

        size: its bytes, where the file object cannot tell by seeking. The weights are copied. An exception
        of the file object ends the call and is raised by it. The rest: as `open`.
        """
        arguments = Arguments()
        reader = reader_struct(arguments, file, size)
        return self._open(
            lambda runtime, params, handle, token, error: lib.wi_model_open_reader(
                runtime, reader, params, token, handle, error
            ),
            precision,
            Weights.COPIED,
            progress,
            cancel,
        )

    def _open(
        self,
        function: Callable[[Any, Any, Any, Any, Any], int],
        precision: Precision,
        weights: Weights,
        progress: Progress | None,
        cancel: Cancel | None,
        *keeps: object,
    ) -> Model:
        runtime = self._use()
        arguments = Arguments()
        params = arguments.struct("wi_model_params", precision=precision, weights=weights)
        if progress is not None:
            params.progress, params.progress_user = on_progress, arguments.keep(Target(progress)).user
        handle = Handle("wi_model", lib.wi_model_release, *keeps)
        call(
            lambda token, error: function(runtime.cell[0], params, handle.cell, token, error),
            cancel,
            long=True,
            into=handle,
        )
        return Model(handle)

    async def open_async(
        self, path: Path, *, precision: Precision = Precision.FAST, weights: Weights = Weights.MAPPED
    ) -> Model:
        """As `open`, beside the event loop; cancelling the asyncio task ends the call."""
        return await call_async(
            lambda cancel: self.open(path, precision=precision, weights=weights, cancel=cancel)
        )

    def device_info(self) -> DeviceInfo:
        """What the runtime runs on. Any thread."""
        runtime, info = self._use(), result("wi_device_info")
        call(lambda _, error: lib.wi_runtime_device_info(runtime.cell[0], info, error))
        return read(info, DeviceInfo)

    def policies(self) -> list[PolicyInfo]:
        """The policies that `Policy` may name on this runtime's device. Any thread."""
        runtime, found = self._use(), []
        for index in range(self.device_info().policies):
            info = result("wi_policy_info")
            call(lambda _, error, i=index, to=info: lib.wi_runtime_policy(runtime.cell[0], i, to, error))  # type: ignore[misc]
            found.append(PolicyInfo(ffi.string(info.name).decode(), ffi.string(info.description).decode()))
        return found

    def stats(self) -> RuntimeStats:
        """What it holds at this moment. Any thread."""
        runtime, stats = self._use(), result("wi_runtime_stats")
        call(lambda _, error: lib.wi_runtime_get_stats(runtime.cell[0], stats, error))
        return read(stats, RuntimeStats)


def devices() -> list[DeviceInfo]:
    """What a runtime could be made on: the host's own processor first, then what is beside it; where there is
    nothing, one that says why. Any thread.
    """
    count = ffi.new("int32_t*")
    call(lambda _, error: lib.wi_device_count(count, error))
    found = []
    for index in range(count[0]):
        info = result("wi_device_info")
        call(lambda _, error, i=index, to=info: lib.wi_device_get_info(i, to, error))  # type: ignore[misc]
        found.append(read(info, DeviceInfo))
    return found
