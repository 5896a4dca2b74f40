"""Python's binary file objects as the library's readers and writers."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from ._abi import ffi
from ._calls import Target, on_read, on_write
from ._values import Arguments


def reader_struct(arguments: Arguments, file: BinaryIO, size: int | None) -> Any:
    """A wi_reader of a file object, from where it stands; size: bytes, None: to its end."""
    if size is None:
        here = file.tell()
        size = file.seek(0, os.SEEK_END) - here
        file.seek(here)
    place = 0

    def read(offset: int, to: Any, count: int) -> None:
        nonlocal place
        if offset != place:
            file.seek(offset - place, os.SEEK_CUR)
            place = offset
        done = 0
        while done < count:
            piece = file.read(count - done)
            if piece is None:
                raise BlockingIOError("the file would block")
            # Bytes, whatever the buffer's elements are and wherever they lie.
            piece = memoryview(piece).tobytes()
            if not piece:
                raise EOFError(f"the file ends {count - done} bytes early")
            if len(piece) > count - done:
                raise ValueError(f"the file gave {len(piece)} bytes where {count - done} were asked for")
            ffi.memmove(to + done, piece, len(piece))
            done += len(piece)
            place += len(piece)

    def read_bytes(offset: int, to: Any, count: int) -> None:
        read(offset, ffi.cast("char*", to), count)

    user = arguments.keep(Target(read_bytes)).user
    return arguments.struct("wi_reader", bytes=size, read=on_read, user=user)


def writer_struct(arguments: Arguments, file: BinaryIO) -> Any:
    """A wi_writer to a file object."""

    def write(start: Any, count: int) -> None:
        piece = memoryview(bytes(ffi.buffer(start, count)))  # the library's memory is not ours to keep
        while piece:
            taken: int | None = file.write(piece)  # a raw file may take less
            if taken is None:
                raise BlockingIOError("the file would block")
            if not 0 < taken <= len(piece):
                raise OSError(f"the file took {taken} of {len(piece)} bytes")
            piece = piece[taken:]

    return arguments.struct("wi_writer", write=on_write, user=arguments.keep(Target(write)).user)
