"""What a call that failed raises: one class for each status of the ABI, under `Error`."""

from __future__ import annotations

import enum
from typing import Any

from ._abi import ffi
from ._library import lib


class Status(enum.IntEnum):
    """What went wrong (wi_status)."""

    OK = 0
    """Nothing."""
    ARGUMENT = 1
    """An argument is wrong; the message names it and its value."""
    FORMAT = 2
    """A file is broken; the message names the field and the byte offset."""
    UNSUPPORTED = 3
    """Well-formed, but not something that this build can do; the message names it."""
    IO = 4
    """The system refused a file operation; native_code is errno."""
    MEMORY = 5
    """The system refused memory."""
    BUDGET = 6
    """A byte budget of the runtime or the session would be exceeded; where there is a slow tier, by what must be
    in fast memory, or the slow tier is full too."""
    CANCELLED = 7
    """A `Cancel` fired, or a callback ended the call."""
    BUSY = 8
    """Another thread, or a task, is inside this session or KV store."""
    STATE = 9
    """The call does not fit the object's state: decode of an empty session, for example."""
    MISMATCH = 10
    """A saved session of another model or of other parameters."""
    DEVICE = 11
    """A device call failed; native_code is the driver's."""
    DEVICE_LOST = 12
    """A sticky device fault: the runtime is unusable, the process is not."""
    INTERNAL = 13
    """A bug in the library; please report the message."""


def status_name(status: int) -> str:
    """A status by the library's own name, "BUDGET" for BUDGET; "UNKNOWN" for a number that is none. Any thread."""
    known = status if 0 <= status < 2**31 else -1
    return str(ffi.string(lib.wi_status_name(known)).decode())


class Error(Exception):
    """A call failed. Everything is as it was before the call, and the next one works."""

    status: Status | int = Status.INTERNAL
    """Which way, as the ABI has it; a plain number is one that this package does not know."""
    native_code: int = 0
    """`errno` or a driver's code; 0: none."""
    message: str
    """What the library says of it, in one line."""

    def __init__(self, message: str, native_code: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.native_code = native_code

    def __str__(self) -> str:
        return self.message


class ArgumentError(Error, ValueError):
    """An argument is wrong; the message names it and its value."""

    status = Status.ARGUMENT


class FormatError(Error):
    """A file is broken; the message names the field and the byte offset."""

    status = Status.FORMAT


class UnsupportedError(Error):
    """Well-formed, but not something that the library can do; the message names it."""

    status = Status.UNSUPPORTED


class FileError(Error, OSError):
    """The system refused a file operation; `errno` says why."""

    status = Status.IO

    def __init__(self, message: str, native_code: int = 0) -> None:
        super().__init__(message, native_code)
        self.errno = native_code
        self.strerror = message


class OutOfMemoryError(Error, MemoryError):
    """The system refused memory."""

    status = Status.MEMORY


class BudgetError(Error):
    """A byte budget of the runtime or the session would be exceeded."""

    status = Status.BUDGET


class CancelledError(Error):
    """A `Cancel` ended the call."""

    status = Status.CANCELLED


class BusyError(Error):
    """Another thread is inside this session or KV store, or a task works on it."""

    status = Status.BUSY


class StateError(Error):
    """The call does not fit the object's state: decode of an empty session, for example."""

    status = Status.STATE


class ClosedError(StateError):
    """The object was closed."""


class MismatchError(Error):
    """A saved session of another model or of other parameters."""

    status = Status.MISMATCH


class DeviceError(Error):
    """A device call failed; native_code is the driver's."""

    status = Status.DEVICE


class DeviceLostError(DeviceError):
    """The runtime is unusable after a fault of its device; the process is not."""

    status = Status.DEVICE_LOST


class InternalError(Error):
    """A bug in the library; please report the message."""

    status = Status.INTERNAL


_classes: dict[int, type[Error]] = {
    int(kind.status): kind
    for kind in (
        ArgumentError,
        FormatError,
        UnsupportedError,
        FileError,
        OutOfMemoryError,
        BudgetError,
        CancelledError,
        BusyError,
        StateError,
        MismatchError,
        DeviceError,
        DeviceLostError,
        InternalError,
    )
}


def error_of(status: int, message: str, native_code: int = 0) -> Error:
    """The exception for a status; one that is unknown gives a plain `Error` with its number."""
    error = _classes.get(status, Error)(message, native_code)
    if status not in _classes:
        error.status = status
    return error


def error_of_native(status: int, native: Any) -> Error:
    """The exception for a status and the wi_error that came with it."""
    return error_of(status, ffi.string(native.message).decode("utf-8", "replace"), native.native_code)
