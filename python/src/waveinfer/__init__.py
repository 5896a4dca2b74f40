"""Large language models over very long texts, inside your own program: libwaveinfer for Python.

    import waveinfer

    with waveinfer.Runtime() as runtime, runtime.open("model.gguf") as model, model.session() as session:
        session.append_text("Once upon a time", add_bos=True)
        for event in session.stream(max_tokens=64):
            print(event.text, end="", flush=True)

The general rules hold everywhere:

- Zero, or leaving it out, means default.
- A call that fails raises an `Error` with the library's status and message; everything is as it was before. Any
  may raise `ArgumentError`, `OutOfMemoryError` or `InternalError`, one of a runtime on a device `DeviceError`, of
  which `DeviceLostError` is one, too; a call's own text lists the rest.
- Objects close at the end of a `with` block, by `close`, or when nobody refers to them; in any order, for what
  was made from an object keeps what it needs. Using a closed one raises `ClosedError`.
- `Runtime`, `Model` and `Cancel` may be used by any number of threads; a `Session` and a `KvStore` by one at a
  time.
- Arrays of the type that a call wants, if they lie dense, are used where they lie, others are converted; none is
  used after the call has returned, but for what `Runtime.open_memory` is given. Until then nothing else may write
  to it; ids are copied before they are checked and used.
- Ctrl-C ends a call on the main thread as a `Cancel` does, and is raised as KeyboardInterrupt when it has
  ended. An exception in a callback does the same. A call lets other threads run.
- There is no retain of the C library's: objects are shared as all of Python's are, by referring to them.
- In the child of `os.fork` objects of the parent raise `StateError`; it may make a runtime of its own.
"""

from ._calls import Cancel
from ._library import ABI_VERSION, __version__
from .errors import (
    ArgumentError,
    BudgetError,
    BusyError,
    CancelledError,
    ClosedError,
    DeviceError,
    DeviceLostError,
    Error,
    FileError,
    FormatError,
    InternalError,
    MismatchError,
    OutOfMemoryError,
    StateError,
    Status,
    UnsupportedError,
    status_name,
)
from .kv import KvStore
from .model import Message, Metadata, Model
from .params import (
    UNLIMITED,
    BindThreads,
    BufferManager,
    HugePages,
    KvType,
    LogitsCallback,
    LogLevel,
    Policy,
    Precision,
    PrefixReuse,
    Sampling,
    SessionOptions,
    Weights,
)
from .runtime import Log, Progress, Runtime, devices
from .session import Event, EventKind, Session, TokenLogprob, decode_batch
from .stats import (
    DeviceInfo,
    MemoryPlan,
    ModelInfo,
    PolicyInfo,
    RuntimeStats,
    SessionStats,
    TokenFlag,
    TokenInfo,
)
from .task import Task, TaskInfo, TaskState

__all__ = [
    "ABI_VERSION",
    "UNLIMITED",
    "ArgumentError",
    "BindThreads",
    "BudgetError",
    "BufferManager",
    "BusyError",
    "Cancel",
    "CancelledError",
    "ClosedError",
    "DeviceError",
    "DeviceInfo",
    "DeviceLostError",
    "Error",
    "Event",
    "EventKind",
    "FileError",
    "FormatError",
    "HugePages",
    "InternalError",
    "KvStore",
    "KvType",
    "Log",
    "LogLevel",
    "LogitsCallback",
    "MemoryPlan",
    "Message",
    "Metadata",
    "MismatchError",
    "Model",
    "ModelInfo",
    "OutOfMemoryError",
    "Policy",
    "PolicyInfo",
    "Precision",
    "PrefixReuse",
    "Progress",
    "Runtime",
    "RuntimeStats",
    "Sampling",
    "Session",
    "SessionOptions",
    "SessionStats",
    "StateError",
    "Status",
    "Task",
    "TaskInfo",
    "TaskState",
    "TokenFlag",
    "TokenInfo",
    "TokenLogprob",
    "UnsupportedError",
    "Weights",
    "__version__",
    "decode_batch",
    "devices",
    "status_name",
]
