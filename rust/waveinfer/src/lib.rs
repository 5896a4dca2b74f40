//! libwaveinfer for Rust: long-context language models inside your program. A session's KV cache is a vector store:
//! what is old is sealed into segments with an index, and a decode step reads only the few clusters of keys that
//! matter (RetroInfer: A Vector-Storage Approach for Scalable Long-Context LLM Inference).
//!
//! ```
//! # fn main() -> waveinfer::Result<()> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/model/needle-f16.gguf");
//! use waveinfer::{Model, Runtime, Session, TokenizeFlags};
//!
//! let runtime = Runtime::new()?;
//! let model = Model::open(&runtime, path)?;
//! let mut session = Session::new(&model)?;
//! session.append_text("And God said,", TokenizeFlags::ADD_BOS)?;
//! for event in session.answer().take(32) {
//!     print!("{}", event?.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What there is
//! * [`Runtime`]: threads, memory budget, log. [`Model`]: weights and tokenizer. [`Session`]: one token sequence.
//!   [`decode_batch`]: many sessions in one step. [`Task`]: a session that the runtime works on by itself. [`Kv`]:
//!   the KV cache alone, for model code of your own.
//! * Each is made by options ([`RuntimeOptions`], [`ModelOptions`], [`SessionOptions`], [`TaskOptions`],
//!   [`KvOptions`]) in which zero, and what is not set, is the default; values out of range are
//!   [`ErrorKind::Argument`], with a message that names them.
//!
//! # Rules
//! * **Errors** are an [`Error`] with an [`ErrorKind`]. After one, objects are as they were before the call, unless it
//!   says otherwise, and the next call works. Any call may be [`ErrorKind::Argument`], [`ErrorKind::Memory`] or
//!   [`ErrorKind::Internal`], one of a runtime on a device [`ErrorKind::Device`] or [`ErrorKind::DeviceLost`], too; its
//!   own text lists the rest.
//! * **Threads.** [`Runtime`], [`Model`], [`Cancel`] and [`StatsReader`] are [`Send`] and [`Sync`], and their clones
//!   are the same object. [`Session`] and [`Kv`] are [`Send`] alone: one thread at a time uses them. [`Task`] is both.
//! * **Ownership.** What is made from an object keeps it alive by itself: drop them in any order. What an [`Event`]
//!   tells is borrowed from its session.
//! * **Cancellation** is a [`Cancel`] token, from any thread or a signal handler; progress functions that return
//!   `ControlFlow::Break`; and, for tasks and streams, to drop them. What was cancelled is as it was before.
//! * **Callbacks** run on the calling thread, but for a log's and a task's. A panic in one does not unwind through C: it
//!   cancels the call, and goes on when that returns.
//! * **Text** is UTF-8. What goes in may be any bytes; events are whole code points.
//! * **fork().** In a child process, calls on objects that the parent made are [`ErrorKind::State`].
//!
//! # Starting the program
//! A library that the system's loader finds is loaded when the program starts; one that is installed elsewhere, or was
//! built from a checkout, becomes a part of the program where there is a `libwaveinfer.a`. Where there is none, the
//! program needs a run path: the documentation of `waveinfer-sys` says how it gets one.
//!
//! # Features
//! * `stream`: `Task::stream`, the events of a task as a futures `Stream`.
//! * `static`: the library becomes a part of the program.

#![deny(missing_docs)]

mod batch;
mod call;
mod cancel;
mod chat;
mod error;
mod event;
mod kv;
mod model;
mod policy;
mod runtime;
mod sampling;
mod session;
mod stats;
#[cfg(feature = "stream")]
mod stream;
mod task;
mod transfer;

pub use batch::decode_batch;
pub use cancel::Cancel;
pub use chat::{ChatMessage, ChatOptions};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventKind, OwnedEvent, TokenLogprob};
pub use kv::{Kv, KvOptions, KvShape};
pub use model::{Model, ModelBytes, ModelInfo, ModelOptions, Precision, TokenInfo, TokenizeFlags, Weights};
pub use policy::Policy;
pub use runtime::{
    devices, BindThreads, BufferManager, DeviceInfo, HugePages, LogLevel, PolicyInfo, Runtime,
    RuntimeOptions, RuntimeStats,
};
pub use sampling::Sampling;
pub use session::{Answer, KvType, MemoryPlan, PrefillOptions, PrefixReuse, Session, SessionOptions};
pub use stats::{SessionStats, StatsReader};
#[cfg(feature = "stream")]
pub use stream::TaskStream;
pub use task::{Events, SubmitError, Task, TaskCanceller, TaskInfo, TaskOptions, TaskState};

/// The id of a token, in [0, vocab).
pub type Token = i32;

/// The version of the library that this program runs with, "major.minor.patch".
pub fn version() -> &'static str {
    // SAFETY: cannot fail; static and NUL-terminated.
    let version = unsafe { std::ffi::CStr::from_ptr(waveinfer_sys::wi_version()) };
    version.to_str().unwrap_or_default()
}

/// The version of its ABI. [`Runtime`]s are made only if it is this crate's.
pub fn abi_version() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { waveinfer_sys::wi_abi_version() }
}
