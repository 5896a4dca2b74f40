"""Values into C's and back: text, paths, arrays, parameter structs, result structs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ._abi import ffi
from .errors import ArgumentError

T = TypeVar("T")

Text = str | bytes
"""Text that the library is given: a str as UTF-8, or bytes as they are."""

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

Tokens = Sequence[int] | NDArray[np.int32]
"""Token ids: any sequence of integers; an int32 array is used where it lies."""


def zero_ended(name: str, text: bytes) -> bytes:
    if b"\0" in text:
        raise ArgumentError(f"{name} has a NUL byte: {text!r}")
    return text


def path_bytes(path: Path) -> bytes:
    return zero_ended("path", os.fsencode(path))


class Arguments:
    """C values of one call and all that they point to, alive as long as this."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def keep(self, value: T) -> T:
        self._kept.append(value)
        return value

    def name(self, what: str, text: str | None) -> Any:
        """NUL-terminated; NULL for None."""
        if text is None:
            return ffi.NULL
        return self.keep(ffi.new("char[]", zero_ended(what, text.encode())))

    def text(self, text: Text) -> tuple[Any, int]:
        """Where it lies, and how many bytes it has there."""
        data = self.keep(ffi.from_buffer("char[]", text.encode() if isinstance(text, str) else bytes(text)))
        return data, len(data)

    def struct(self, kind: str, **fields: Any) -> Any:
        """A struct that says its size, with these fields set."""
        value = self.keep(ffi.new(kind + "*"))
        value.struct_size = ffi.sizeof(kind)
        for field, given in fields.items():
            set_field(value, field, given)
        return value


def set_field(struct: Any, field: str, value: Any) -> None:
    try:
        setattr(struct, field, value)
    except OverflowError as problem:
        raise ArgumentError(f"{field} is {value}: {problem}") from None
    except TypeError as problem:
        raise TypeError(f"{field}: {problem}") from None


def result(kind: str) -> Any:
    value = ffi.new(kind + "*")
    value.struct_size = ffi.sizeof(kind)
    return value


def read(struct: Any, kind: type[T]) -> T:
    """A result struct as the dataclass whose fields have the same names."""
    return kind(**{field.name: _plain(getattr(struct, field.name)) for field in dataclasses.fields(kind)})  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    return ffi.string(value).decode("utf-8", "replace") if isinstance(value, ffi.CData) else value


def token_array(tokens: Tokens) -> NDArray[np.int32]:
    """(n) int32, dense; the same memory if it is that already."""
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise ArgumentError(f"tokens has {array.ndim} dimensions, not one")
    if array.size == 0:
        return np.empty(0, np.int32)
    if not np.issubdtype(array.dtype, np.integer):
        raise ArgumentError(f"tokens are {array.dtype}, not integers of 32 bits")
    if array.dtype != np.int32 and (array.min() < -(2**31) or array.max() >= 2**31):
        raise ArgumentError("tokens has a number beyond 32 bits")
    return np.ascontiguousarray(array, np.int32)


def int32_pointer(array: NDArray[np.int32], writable: bool = False) -> Any:
    return ffi.from_buffer("int32_t[]", array, require_writable=writable)


def float_pointer(array: NDArray[np.float32], writable: bool = False) -> Any:
    return ffi.from_buffer("float[]", array, require_writable=writable)


def tokenize_flags(add_bos: bool, parse_special: bool) -> int:
    return (1 if add_bos else 0) | (2 if parse_special else 0)


def fill_bytes(guess: int, function: Callable[[Any, int, Any], None]) -> bytes:
    """The text that function(to, capacity, length_out) writes; again, if it is longer than was guessed."""
    while True:
        length = ffi.new("uint64_t*")
        to = ffi.new("char[]", guess)
        try:
            function(to, guess, length)
        except ArgumentError:
            if length[0] <= guess:
                raise
            guess = length[0]
            continue
        return bytes(ffi.buffer(to, length[0]))


def fill_tokens(guess: int, function: Callable[[Any, int, Any], None]) -> NDArray[np.int32]:
    """As fill_bytes, for token ids."""
    while True:
        count = ffi.new("uint64_t*")
        to = np.empty(guess, np.int32)
        try:
            function(int32_pointer(to, writable=True), guess, count)
        except ArgumentError:
            if count[0] <= guess:
                raise
            guess = count[0]
            continue
        return to[: count[0]].copy() if count[0] < guess else to
