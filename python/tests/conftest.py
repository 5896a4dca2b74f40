"""What the tests share: the sample model, and one runtime for all that need none of their own."""

import gc
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import waveinfer

SOURCE = Path(__file__).resolve().parents[2]
MODEL = SOURCE / "samples" / "model" / "needle-f16.gguf"
SEED = int(os.environ.get("WI_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)


def pytest_report_header() -> str:
    return f"WI_TEST_SEED={SEED}, libwaveinfer {waveinfer.__version__}"


@pytest.fixture(scope="session")
def runtime() -> Iterator[waveinfer.Runtime]:
    with waveinfer.Runtime() as runtime:
        yield runtime


@pytest.fixture(scope="session")
def model(runtime: waveinfer.Runtime) -> Iterator[waveinfer.Model]:
    with runtime.open(MODEL) as model:
        yield model


@pytest.fixture
def session(model: waveinfer.Model) -> Iterator[waveinfer.Session]:
    with model.session() as session:
        yield session


@pytest.fixture
def rng() -> random.Random:
    return random.Random(SEED)


def some_tokens(count: int, seed: int = 1) -> NDArray[np.int32]:
    return ((np.arange(count) * 7 + seed * 31) % 1000 + 1).astype(np.int32)


def answer(session: waveinfer.Session, count: int = 8) -> list[int]:
    return [session.decode().token for _ in range(count)]


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


Raises = Callable[[], object]
