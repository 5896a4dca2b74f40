"""What goes into the package besides its sources, when hatchling builds it: waveinfer/_abi.py, the declarations
of waveinfer.h as cffi reads them (its ABI mode, out of line), so that nothing of the header is written a second
time; and the libwaveinfer.so that WAVEINFER_LIBRARY names, else the checkout's bundled one. No package is made
that would find no library where it is imported.
"""

import os
import re
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface[Any]):
    """Called by hatchling for each archive."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Names the files to be added."""
        header = find_header(Path(self.root))
        if self.target_name == "sdist":
            build_data["force_include"][str(header)] = "waveinfer.h"
            return
        self._folder = tempfile.TemporaryDirectory()
        module = Path(self._folder.name) / "_abi.py"
        write_module(header.read_text(encoding="utf-8"), module)
        build_data["force_include" if version == "standard" else "force_include_editable"] = {
            str(module): "waveinfer/_abi.py"
        }
        if version != "standard":
            return
        try:
            library = find_library(Path(self.root))
        except OSError:
            self.app.abort(NO_LIBRARY)
        if library:
            build_data["force_include"][str(library)] = "waveinfer/libwaveinfer.so"
            licenses = library.with_name("LICENSES")
            if licenses.is_file():
                build_data["force_include"][str(licenses)] = "waveinfer/LICENSES"
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was made."""
        if self.target_name == "wheel":
            self._folder.cleanup()


def find_header(root: Path) -> Path:
    """The checkout's, or the one that a source distribution carries."""
    for path in (root.parent / "include" / "waveinfer.h", root / "waveinfer.h"):
        if path.is_file():
            return path
    raise FileNotFoundError("waveinfer.h: neither in ../include nor beside hatch_build.py")


def find_library(root: Path) -> Path | None:
    """What the package is to carry: nothing where WAVEINFER_LIBRARY is empty or the system's loader has one.

    Raises OSError where there is none at all.
    """
    named = os.environ.get("WAVEINFER_LIBRARY")
    if named is not None:
        return Path(named).resolve() if named else None
    bundled = root.parent / "build" / "bundled" / "lib" / "libwaveinfer.so"
    if bundled.is_file():
        return bundled.resolve()
    FFI().dlopen("libwaveinfer.so.2")  # as waveinfer/_library.py will
    return None


NO_LIBRARY = """waveinfer: there is no libwaveinfer.so for the package to carry. In a checkout this makes one:
    cmake -S . -B build && cmake --build build
WAVEINFER_LIBRARY=FILE names another; empty, it is for a package that carries none."""


def write_module(header: str, to: Path) -> None:
    """The header without what only a C compiler's preprocessor reads, as a module."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    ffi = FFI()
    ffi.cdef(re.sub(r"^#.*$", "", text, flags=re.MULTILINE).replace("WI_API ", ""))
    ffi.set_source("waveinfer._abi", None)
    ffi.emit_python_code(str(to))
