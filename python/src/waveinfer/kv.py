"""A KV store alone, for programs that have model code of their own: give it keys and values per layer, get
attention back, with the segments and policies of a session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._abi import ffi
from ._calls import Cancel, Exclusive, Handle, alone, call
from ._library import lib
from ._streams import reader_struct, writer_struct
from ._values import Arguments, Path, float_pointer, path_bytes, read, result
from .errors import ArgumentError
from .params import KvType, Policy, policy_struct
from .runtime import Runtime
from .stats import SessionStats

_SLOW_NS = 20_000_000  # as in session.py


class KvStore(Exclusive):
    """Keys and values of one token sequence, per layer. One thread at a time, as a session; `stats` and `close`
    work at any time.

    layers, query_heads, kv_heads, head_dim: the shape; query_heads is a multiple of kv_heads, head_dim
        of 8
    kv_type: keys and values are rounded to it
    policy: how the past is indexed and read
    kv_budget_bytes: most bytes of its KV and index; 0: only the runtime's budget counts
    Errors: UnsupportedError for an unknown policy, and on a device.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        layers: int,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        kv_type: KvType = KvType.F16,
        policy: Policy | None = None,
        kv_budget_bytes: int = 0,
    ) -> None:
        native, arguments = runtime._use(), Arguments()
        params = _struct(
            arguments, (layers, query_heads, kv_heads, head_dim), kv_type, policy, kv_budget_bytes
        )
        handle = Handle("wi_kv", lib.wi_kv_release)
        call(lambda _, error: lib.wi_kv_create(native.cell[0], params, handle.cell, error), into=handle)
        self._set_up(handle, (layers, query_heads, kv_heads, head_dim))

    def _set_up(self, handle: Handle, shape: tuple[int, int, int, int]) -> None:
        super().__init__(handle)
        self._layers, self._query_heads, self._kv_heads, self._head_dim = shape
        self._slow = False

    @classmethod
    def load(
        cls,
        runtime: Runtime,
        path: Path,
        *,
        layers: int,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        kv_type: KvType = KvType.F16,
        policy: Policy | None = None,
        kv_budget_bytes: int = 0,
        cancel: Cancel | None = None,
    ) -> KvStore:
        """Reads a store back that `save` wrote. The shape must be as saved; what else is left out is as saved,
        and what is given must be as saved where it shapes what is stored: see `Model.load`.

        Errors: FileError, FormatError, UnsupportedError, MismatchError, BudgetError, CancelledError.
        """
        name, native = path_bytes(path), runtime._use()
        return cls._load(
            lambda params, token, handle, error: lib.wi_kv_load(
                native.cell[0], name, params, token, handle, error
            ),
            (layers, query_heads, kv_heads, head_dim),
            kv_type,
            policy,
            kv_budget_bytes,
            cancel,
        )

    @classmethod
    def load_file(
        cls,
        runtime: Runtime,
        file: BinaryIO,
        size: int | None = None,
        *,
        layers: int,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        kv_type: KvType = KvType.F16,
        policy: Policy | None = None,
        kv_budget_bytes: int = 0,
        cancel: Cancel | None = None,
    ) -> KvStore:
        """As `load`, from a binary file object, of which size bytes are the store's; default: to its end."""
        arguments, native = Arguments(), runtime._use()
        reader = reader_struct(arguments, file, size)
        return cls._load(
            lambda params, token, handle, error: lib.wi_kv_load_from(
                native.cell[0], reader, params, token, handle, error
            ),
            (layers, query_heads, kv_heads, head_dim),
            kv_type,
            policy,
            kv_budget_bytes,
            cancel,
        )

    @classmethod
    def _load(
        cls,
        function: Callable[[Any, Any, Any, Any], int],
        shape: tuple[int, int, int, int],
        kv_type: KvType,
        policy: Policy | None,
        kv_budget_bytes: int,
        cancel: Cancel | None,
    ) -> KvStore:
        if min(shape) < 1:
            raise ArgumentError(f"layers, query_heads, kv_heads, head_dim are {shape}: the shape is needed")
        arguments = Arguments()
        params = _struct(arguments, shape, kv_type, policy, kv_budget_bytes)
        handle = Handle("wi_kv", lib.wi_kv_release)
        call(lambda token, error: function(params, token, handle.cell, error), cancel, long=True, into=handle)
        store = cls.__new__(cls)
        store._set_up(handle, shape)
        return store

    @alone
    def append(self, layer: int, keys: ArrayLike, values: ArrayLike) -> None:
        """Appends tokens to one layer. A token belongs to the store once every layer has it.

        layer: in [0, layers)
        keys, values: (tokens, kv_heads, head_dim) f32, finite; keys rotated. Arrays of other types are
            converted, others that lie dense are used where they are
        Errors: ArgumentError for a number that is not finite, UnsupportedError for one beyond kv_type;
        BudgetError, BusyError; FileError if the disk of the slow tier fails.
        """
        store = self._use()
        k = self._rows("keys", keys, self._kv_heads)
        v = self._rows("values", values, self._kv_heads)
        if k.shape != v.shape:
            raise ArgumentError(f"keys have {k.shape[0]} tokens, values {v.shape[0]}")
        from_k, from_v = float_pointer(k), float_pointer(v)
        call(lambda _, error: lib.wi_kv_append(store.cell[0], layer, k.shape[0], from_k, from_v, error))

    @alone
    def seal(self) -> None:
        """Seals what can be sealed beyond the local window. Nothing is sealed without this call, and until then
        everything is attended exactly.

        Errors: StateError if layers have different numbers of tokens; BudgetError, BusyError; FileError and
        FormatError of the slow tier, as `Session.prefill`.
        """
        store = self._use()
        call(lambda _, error: lib.wi_kv_seal(store.cell[0], error))

    def attend(self, layer: int, queries: ArrayLike, *, cancel: Cancel | None = None) -> NDArray[np.float32]:
        """Attention of queries over everything appended to a layer so far: softmax(q k / sqrt(head_dim)) v.
        Every row sees the same tokens; causal order within a chunk is the host's.

        queries: (rows, query_heads, head_dim) f32, rotated, not scaled
        Returns (rows, query_heads, head_dim) f32, normalised.
        Errors: StateError if the layer is empty; CancelledError, BusyError; FileError and FormatError of the slow
        tier, as `Session.prefill`.
        """
        return self._attend(layer, queries, cancel, False)[0]

    def attend_lse(
        self, layer: int, queries: ArrayLike, *, cancel: Cancel | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """As `attend`; returns also (rows, query_heads) f32, the natural log of the sum of exponentials, for
        merging with attention over other tokens.
        """
        return self._attend(layer, queries, cancel, True)

    @alone
    def _attend(
        self, layer: int, queries: ArrayLike, cancel: Cancel | None, with_lse: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        store = self._use()
        q = self._rows("queries", queries, self._query_heads)
        out, lse = np.empty_like(q), np.empty(q.shape[:2], np.float32)
        from_q, to = float_pointer(q), float_pointer(out, writable=True)
        to_lse = float_pointer(lse, writable=True) if with_lse else ffi.NULL
        started = time.perf_counter_ns()
        call(
            lambda token, error: lib.wi_kv_attend(
                store.cell[0], layer, q.shape[0], from_q, token, to, to_lse, error
            ),
            cancel,
            self._slow,
        )
        self._slow = time.perf_counter_ns() - started > _SLOW_NS
        return out, lse

    @alone
    def fork(self) -> KvStore:
        """A second store that goes on from here on its own, and shares what is sealed. Errors: BusyError."""
        store, handle = self._use(), Handle("wi_kv", lib.wi_kv_release)
        call(lambda _, error: lib.wi_kv_fork(store.cell[0], handle.cell, error), into=handle)
        fork = type(self).__new__(type(self))
        fork._set_up(handle, (self._layers, self._query_heads, self._kv_heads, self._head_dim))
        return fork

    @alone
    def truncate(self, tokens: int) -> None:
        """Cuts the store back to its first `tokens` tokens in every layer; what only some layers have goes too.

        Errors: ArgumentError for more tokens than it has; BudgetError, BusyError; FileError and FormatError of the
        slow tier, as `Session.prefill`.
        """
        store = self._use()
        call(lambda _, error: lib.wi_kv_truncate(store.cell[0], tokens, error))

    def stats(self) -> SessionStats:
        """What the store has done; fields about prefill, weights and prefixes stay 0. Any thread."""
        store, stats = self._use(), result("wi_session_stats")
        call(lambda _, error: lib.wi_kv_get_stats(store.cell[0], stats, error))
        return read(stats, SessionStats)

    @alone
    def save(self, path: Path, *, cancel: Cancel | None = None) -> None:
        """Writes the store to a file, whole or not at all.

        Errors: as `Session.save`; StateError if layers have different numbers of tokens.
        """
        store, name = self._use(), path_bytes(path)
        call(lambda token, error: lib.wi_kv_save(store.cell[0], name, token, error), cancel, long=True)

    @alone
    def save_file(self, file: BinaryIO, *, cancel: Cancel | None = None) -> None:
        """The same bytes to a binary file object, in pieces of about 1 MiB."""
        store, arguments = self._use(), Arguments()
        writer = writer_struct(arguments, file)
        call(
            lambda token, error: lib.wi_kv_save_to(store.cell[0], writer, token, error),
            cancel,
            long=True,
        )

    @alone
    def saved_bytes(self) -> int:
        """Bytes that a save of the store as it is now takes. Errors: BusyError, StateError."""
        store, count = self._use(), ffi.new("uint64_t*")
        call(lambda _, error: lib.wi_kv_saved_bytes(store.cell[0], count, error))
        return int(count[0])

    def _rows(self, name: str, array: ArrayLike, heads: int) -> NDArray[np.float32]:
        rows = np.ascontiguousarray(array, np.float32)
        if rows.ndim != 3 or rows.shape[1:] != (heads, self._head_dim):
            raise ArgumentError(f"{name} are {rows.shape}, not (tokens, {heads}, {self._head_dim})")
        return rows


def _struct(
    arguments: Arguments,
    shape: tuple[int, int, int, int],
    kv_type: KvType,
    policy: Policy | None,
    kv_budget_bytes: int,
) -> Any:
    layers, query_heads, kv_heads, head_dim = shape
    return arguments.struct(
        "wi_kv_params",
        layers=layers,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        kv_type=kv_type,
        policy=policy_struct(arguments, policy),
        kv_budget_bytes=kv_budget_bytes,
    )
