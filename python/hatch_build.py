"""What goes into the package besides its sources, when hatchling builds it: waveinfer/_abi.py, the declarations
of waveinfer.h as cffi reads them (its ABI mode, out of line), so that nothing of the header is written a second
time; the licence; and the libwaveinfer.so that WAVEINFER_LIBRARY names, else the checkout's bundled one. No
package is made that would find no library where it is imported.
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
        header = find(Path(self.root), "include/waveinfer.h")
        license_text = find(Path(self.root), "LICENSE")
        if self.target_name == "sdist":
            for file in (header, license_text):
                build_data["force_include"][str(file)] = file.name
            return
        self._folder = tempfile.TemporaryDirectory()
        module = Path(self._folder.name) / "_abi.py"
        write_module(header.read_text(encoding="utf-8"), module)
        build_data["force_include" if version == "standard" else "force_include_editable"] = {
            str(module): "waveinfer/_abi.py"
        }
        if version != "standard":
            return
        build_data["force_include"][str(license_text)] = "waveinfer/LICENSE"
        try:
            library = find_library(Path(self.root))
        except OSError as why:
            self.app.abort(f"waveinfer: {why}")
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


def find(root: Path, file: str) -> Path:
    """A file of the checkout, or the one that a source distribution carries."""
    for path in (root.parent / file, root / Path(file).name):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{Path(file).name}: neither in the checkout nor beside hatch_build.py")


def find_library(root: Path) -> Path | None:
    """What the package is to carry: nothing where WAVEINFER_LIBRARY is empty or the system's loader has one.

    Raises OSError, in words for who makes the package, where there is none at all.
    """
    named = os.environ.get("WAVEINFER_LIBRARY")
    if named is not None:
        return named_library(Path(named), root) if named else None
    build = root.parent / "build"
    bundled = bundled_library(build)
    if bundled.is_file():
        return bundled.resolve()
    try:
        FFI().dlopen("libwaveinfer.so.2")  # as waveinfer/_library.py will
    except OSError:
        other = build / "lib" / "libwaveinfer.so"
        raise OSError(NOT_BUNDLED.format(bundled, other) if other.is_file() else NO_LIBRARY) from None
    return None


def named_library(path: Path, root: Path) -> Path:
    """What WAVEINFER_LIBRARY names: from the root on, for pip has gone to another folder than who called it."""
    if not path.is_absolute():
        raise OSError(
            f"WAVEINFER_LIBRARY is {path}: packages are made in {root}, and the whole path is needed"
        )
    if not path.is_file():
        raise OSError(f"WAVEINFER_LIBRARY is {path}, where there is no file")
    return path.resolve()


def bundled_library(build: Path) -> Path:
    """Where a build folder has it, whether there is one or not: with WAVEINFER_BUNDLED it is the only one."""
    cache = build / "CMakeCache.txt"
    said = cache.read_text(encoding="utf-8") if cache.is_file() else ""
    alone = re.search(r"^WAVEINFER_BUNDLED:BOOL=(ON|YES|TRUE|Y|1)$", said, re.IGNORECASE | re.MULTILINE)
    return build / ("lib" if alone else "bundled/lib") / "libwaveinfer.so"


NO_LIBRARY = """there is no libwaveinfer.so for the package to carry. In a checkout this makes one:
    cmake -S . -B build -DBUILD_TESTING=OFF && cmake --build build --parallel "$(nproc)"
WAVEINFER_LIBRARY=FILE names another, by its whole path; empty, it is for a package that carries none."""

NOT_BUNDLED = """there is no {}: CMake says why it makes none ("Bundled library: not built, for ...").
WAVEINFER_LIBRARY={} makes a package with the one that there is, which needs libraries of this system;
an empty WAVEINFER_LIBRARY one that carries none."""


def write_module(header: str, to: Path) -> None:
    """The header without what only a C compiler's preprocessor reads, as a module."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    ffi = FFI()
    ffi.cdef(re.sub(r"^#.*$", "", text, flags=re.MULTILINE).replace("WI_API ", ""))
    ffi.set_source("waveinfer._abi", None)
    ffi.emit_python_code(str(to))
