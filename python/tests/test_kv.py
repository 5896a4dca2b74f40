"""The KV store alone, against attention in NumPy."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SEED
from numpy.typing import NDArray

import waveinfer
from waveinfer import KvStore, KvType, Policy, Runtime

LAYERS, QUERY_HEADS, KV_HEADS, HEAD_DIM = 2, 4, 2, 32

Array = NDArray[np.float32]


def rows(rng: np.random.Generator, count: int, heads: int) -> Array:
    return rng.standard_normal((count, heads, HEAD_DIM)).astype(np.float32)


def attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    group = QUERY_HEADS // KV_HEADS
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->qhk", q, k) / np.sqrt(HEAD_DIM)
    lse = np.logaddexp.reduce(scores, axis=2)
    return np.einsum("qhk,khd->qhd", np.exp(scores - lse[..., None]), v), lse


def make(runtime: Runtime, policy: str = "full", kv_type: KvType = KvType.F32) -> KvStore:
    return KvStore(
        runtime, layers=LAYERS, query_heads=QUERY_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
        kv_type=kv_type, policy=Policy(policy),
    )  # fmt: skip


def filled(runtime: Runtime, tokens: int = 5000) -> tuple[KvStore, Array, Array, np.random.Generator]:
    rng = np.random.default_rng(SEED)
    store = make(runtime)
    k, v = rows(rng, tokens, KV_HEADS), rows(rng, tokens, KV_HEADS)
    for layer in range(LAYERS):
        store.append(layer, k, v)
    return store, k, v, rng


class Growing:
    """Queries that are more each time somebody asks for them."""

    def __init__(self) -> None:
        self.asked = 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        self.asked += 1
        return np.ones((10 ** min(self.asked, 4), QUERY_HEADS, HEAD_DIM), np.float32)


def test_queries_are_looked_at_once(runtime: Runtime) -> None:
    store, k, v, _ = filled(runtime, 100)
    queries = Growing()
    out, lse = store.attend_lse(1, queries)
    assert queries.asked == 1
    expected, expected_lse = attention(np.ones((10, QUERY_HEADS, HEAD_DIM), np.float32), k, v)
    np.testing.assert_allclose(out, expected, atol=1e-4)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-4)


def test_attention_under_full_is_exact(runtime: Runtime) -> None:
    store, k, v, rng = filled(runtime)
    store.seal()
    q = rows(rng, 3, QUERY_HEADS)
    out, lse = store.attend_lse(1, q)
    expected, expected_lse = attention(q, k, v)
    np.testing.assert_allclose(out, expected, atol=1e-4)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-4)
    np.testing.assert_array_equal(store.attend(1, q), out)
    stats = store.stats()
    assert (stats.tokens, stats.decode_steps) == (5000, 2)
    assert stats.segments > 0


def test_forks_truncation_and_files_keep_what_they_have(runtime: Runtime, tmp_path: Path) -> None:
    store, k, v, rng = filled(runtime, 3000)
    store.seal()
    q = rows(rng, 1, QUERY_HEADS)
    with store.fork() as fork:
        fork.truncate(2000)
        np.testing.assert_allclose(fork.attend(0, q), attention(q, k[:2000], v[:2000])[0], atol=1e-4)
    before = store.attend(0, q)
    store.save(tmp_path / "kv")
    memory = io.BytesIO()
    store.save_file(memory)
    assert store.saved_bytes() == len(memory.getvalue()) == (tmp_path / "kv").stat().st_size
    memory.seek(0)
    shape: Any = {"layers": LAYERS, "query_heads": QUERY_HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    for loaded in (
        KvStore.load(runtime, tmp_path / "kv", **shape),
        KvStore.load_file(runtime, memory, **shape),
    ):
        with loaded:
            np.testing.assert_array_equal(loaded.attend(0, q), before)
    with pytest.raises(waveinfer.MismatchError):
        KvStore.load(runtime, tmp_path / "kv", **{**shape, "kv_heads": 1})
    with pytest.raises(waveinfer.ArgumentError):
        KvStore.load(runtime, tmp_path / "kv", **{**shape, "head_dim": 0})


def test_arrays_of_another_shape_are_errors(runtime: Runtime) -> None:
    store, k, v, rng = filled(runtime, 10)
    for wrong in (k[:, :1], k[:, :, :1], k[0], np.zeros((0,))):
        with pytest.raises(waveinfer.ArgumentError, match="keys are"):
            store.append(0, wrong, v)
    with pytest.raises(waveinfer.ArgumentError, match="10 tokens, values 9"):
        store.append(0, k, v[:9])
    with pytest.raises(waveinfer.ArgumentError, match="queries are"):
        store.attend(0, rows(rng, 1, KV_HEADS))
    with pytest.raises(waveinfer.ArgumentError):
        store.attend_lse(0, 1.0)
    for layer in (-1, LAYERS, 2**40):
        with pytest.raises(waveinfer.ArgumentError):
            store.append(layer, k, v)
    with pytest.raises(waveinfer.ArgumentError):
        store.append(0, np.full_like(k, np.nan), v)


def test_arrays_that_are_converted_give_the_same(runtime: Runtime) -> None:
    store, k, v, rng = filled(runtime, 100)
    other = make(runtime)
    other.append(0, np.asfortranarray(k), v.astype(np.float64))
    other.append(1, k.tolist(), v)
    q = rows(rng, 1, QUERY_HEADS)
    np.testing.assert_array_equal(other.attend(0, q.tolist()), store.attend(0, q))


def test_errors_are_the_library_s(runtime: Runtime) -> None:
    store = make(runtime, kv_type=KvType.F16)
    with pytest.raises(waveinfer.StateError):
        store.attend(0, np.zeros((1, QUERY_HEADS, HEAD_DIM)))
    big = np.full((1, KV_HEADS, HEAD_DIM), 1e30)
    with pytest.raises(waveinfer.UnsupportedError, match="bf16"):
        store.append(0, big, big)
    store.append(0, np.zeros_like(big), np.zeros_like(big))
    with pytest.raises(waveinfer.StateError):
        store.seal()
    with pytest.raises(waveinfer.UnsupportedError, match="psychic"):
        make(runtime, "psychic")
    cancel = waveinfer.Cancel()
    cancel.trigger()
    with pytest.raises(waveinfer.CancelledError):
        store.attend(0, np.zeros((1, QUERY_HEADS, HEAD_DIM)), cancel=cancel)


def test_wave_reads_less_and_finds_what_stands_out(runtime: Runtime) -> None:
    rng = np.random.default_rng(SEED)
    store = make(runtime, "wave")
    k, v = rows(rng, 20_000, KV_HEADS), rows(rng, 20_000, KV_HEADS)
    k[12_345] *= 4
    for layer in range(LAYERS):
        store.append(layer, k, v)
    store.seal()
    q = np.repeat(k[12_345][None], QUERY_HEADS // KV_HEADS, axis=1)
    np.testing.assert_allclose(store.attend(0, q), attention(q, k, v)[0], atol=0.05)
    assert store.stats().kv_bytes_read < k.nbytes
