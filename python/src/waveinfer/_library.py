"""Finds and loads libwaveinfer: what WAVEINFER_LIBRARY names, else the one that the package carries, else what
the system's loader finds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ._abi import ffi

ABI_VERSION = 2
"""The ABI that this package is written for."""


def _load() -> Any:
    named = os.environ.get("WAVEINFER_LIBRARY")
    carried = Path(__file__).with_name("libwaveinfer.so")
    path = named or (str(carried) if carried.is_file() else f"libwaveinfer.so.{ABI_VERSION}")
    try:
        library = ffi.dlopen(path, os.RTLD_NOW | os.RTLD_NODELETE)  # handles may outlive this module
    except OSError as problem:
        where = "as WAVEINFER_LIBRARY says" if named else "WAVEINFER_LIBRARY may name the file"
        raise ImportError(f"libwaveinfer cannot be loaded ({where}): {problem}") from problem
    return library


lib: Any = _load()

if lib.wi_abi_version() != ABI_VERSION:
    raise ImportError(f"{lib} has ABI {lib.wi_abi_version()}; this package needs {ABI_VERSION}")

__version__: str = ffi.string(lib.wi_version()).decode()
"""The library's version, "major.minor.patch"."""
