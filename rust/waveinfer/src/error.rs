use std::ffi::CStr;
use std::fmt;
use std::io;

use waveinfer_sys::*;

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, by the statuses of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is wrong; the message names it and its value.
    Argument,
    /// A file is broken; the message names the field and the byte offset.
    Format,
    /// Well-formed, but not something that this build can do; the message names it.
    Unsupported,
    /// The system refused a file operation: [`Error::native_code`] is errno. With a reader or a writer of the
    /// host's: it failed, and its own error is the [source](std::error::Error::source).
    Io,
    /// The system refused memory.
    Memory,
    /// A byte budget of the runtime or the session would be exceeded; where there is a slow tier, by what must
    /// be in fast memory, or the slow tier is full too.
    Budget,
    /// The cancel token fired, or a callback ended the call.
    Cancelled,
    /// Another thread is inside this session or KV store. The borrow rules keep safe programs from that.
    Busy,
    /// The call does not fit the object's state, e.g. decode of an empty session.
    State,
    /// A saved session of another model or of other parameters.
    Mismatch,
    /// A device call failed; [`Error::native_code`] is the driver's.
    Device,
    /// A sticky device fault: this runtime is unusable, the process is not.
    DeviceLost,
    /// A bug in the library; please report the message.
    Internal,
    /// A status that this crate does not know, of a newer library.
    Unknown(i32),
}

impl ErrorKind {
    pub(crate) fn from_raw(status: wi_status) -> Self {
        match status {
            WI_E_ARGUMENT => Self::Argument,
            WI_E_FORMAT => Self::Format,
            WI_E_UNSUPPORTED => Self::Unsupported,
            WI_E_IO => Self::Io,
            WI_E_MEMORY => Self::Memory,
            WI_E_BUDGET => Self::Budget,
            WI_E_CANCELLED => Self::Cancelled,
            WI_E_BUSY => Self::Busy,
            WI_E_STATE => Self::State,
            WI_E_MISMATCH => Self::Mismatch,
            WI_E_DEVICE => Self::Device,
            WI_E_DEVICE_LOST => Self::DeviceLost,
            WI_E_INTERNAL => Self::Internal,
            other => Self::Unknown(other),
        }
    }

    /// The library's number for it, a `WI_E_*`.
    pub fn status(self) -> i32 {
        match self {
            Self::Argument => WI_E_ARGUMENT,
            Self::Format => WI_E_FORMAT,
            Self::Unsupported => WI_E_UNSUPPORTED,
            Self::Io => WI_E_IO,
            Self::Memory => WI_E_MEMORY,
            Self::Budget => WI_E_BUDGET,
            Self::Cancelled => WI_E_CANCELLED,
            Self::Busy => WI_E_BUSY,
            Self::State => WI_E_STATE,
            Self::Mismatch => WI_E_MISMATCH,
            Self::Device => WI_E_DEVICE,
            Self::DeviceLost => WI_E_DEVICE_LOST,
            Self::Internal => WI_E_INTERNAL,
            Self::Unknown(status) => status,
        }
    }

    /// Its name without the prefix: "BUDGET" for `WI_E_BUDGET`, "UNKNOWN" for what is none.
    pub fn name(self) -> &'static str {
        // SAFETY: cannot fail; the name is static, NUL-terminated and ASCII.
        unsafe { CStr::from_ptr(wi_status_name(self.status())) }.to_str().unwrap_or("UNKNOWN")
    }
}

/// As [`ErrorKind::name`] says it.
impl fmt::Display for ErrorKind {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(self.name())
    }
}

/// Why a call failed. The objects that it was given are as they were before it, and the next call works.
///
/// Displayed, it is the message; [`kind`](Error::kind) says what to do about it.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    native_code: i64,
    message: String,
    source: Option<io::Error>,
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// errno, or a driver's code; None if there is none.
    pub fn native_code(&self) -> Option<i64> {
        Some(self.native_code).filter(|&code| code != 0)
    }

    /// What the library says of it, in English.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// # Safety
    /// native_code is written, and the message, with its NUL.
    pub(crate) unsafe fn from_raw(status: wi_status, raw: *const wi_error) -> Self {
        // SAFETY: see above.
        let (native_code, message) = unsafe {
            let message = std::ptr::addr_of!((*raw).message).cast();
            ((*raw).native_code, CStr::from_ptr(message).to_string_lossy().into_owned())
        };
        Self { kind: ErrorKind::from_raw(status), native_code, message, source: None }
    }

    /// A failed task's, from what is known of it.
    pub(crate) fn of_task(kind: ErrorKind, native_code: i64, message: String) -> Self {
        Self { kind, native_code, message, source: None }
    }

    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        Self { kind, native_code: 0, message, source: None }
    }

    pub(crate) fn argument(message: String) -> Self {
        Self { kind: ErrorKind::Argument, native_code: 0, message, source: None }
    }

    pub(crate) fn internal(message: &str) -> Self {
        Self { kind: ErrorKind::Internal, native_code: 0, message: message.into(), source: None }
    }

    pub(crate) fn memory(elements: usize) -> Self {
        let message = format!("the system refused memory for {elements} elements");
        Self { kind: ErrorKind::Memory, native_code: 0, message, source: None }
    }

    pub(crate) fn format(message: String) -> Self {
        Self { kind: ErrorKind::Format, native_code: 0, message, source: None }
    }

    /// An operation of the host's own.
    pub(crate) fn io(source: io::Error, what: &str) -> Self {
        let native_code = source.raw_os_error().unwrap_or(0).into();
        let message = format!("{what}: {source}");
        Self { kind: ErrorKind::Io, native_code, message, source: Some(source) }
    }

    /// With the error of the host's own reader or writer that it comes from.
    pub(crate) fn caused_by(mut self, source: Option<io::Error>) -> Self {
        self.source = source;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// For programs whose functions return [`io::Result`]: the error as it is within one of the nearest kind.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::Argument => io::ErrorKind::InvalidInput,
            ErrorKind::Format | ErrorKind::Mismatch => io::ErrorKind::InvalidData,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Memory | ErrorKind::Budget => io::ErrorKind::OutOfMemory,
            ErrorKind::Cancelled => io::ErrorKind::Interrupted,
            ErrorKind::Busy => io::ErrorKind::WouldBlock,
            ErrorKind::Io => i32::try_from(error.native_code)
                .map_or(io::ErrorKind::Other, |code| io::Error::from_raw_os_error(code).kind()),
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
