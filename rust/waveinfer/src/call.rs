//! Every call of the library goes through here: its error becomes an [`Error`], and a panic in one of the host's
//! callbacks, which must not unwind through C, is held back while the call is ended and goes on after it.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_void, CString};
use std::mem::{size_of, MaybeUninit};
use std::ops::ControlFlow;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr::{addr_of_mut, null_mut, NonNull};

use waveinfer_sys::*;

use crate::error::{Error, Result};

pub(crate) type Panic = Box<dyn Any + Send>;

thread_local! {
    /// Calls of the library that this thread is inside of.
    static CALLS: Cell<u32> = const { Cell::new(0) };
    /// What a callback of the innermost of them panicked with.
    static PANIC: Cell<Option<Panic>> = const { Cell::new(None) };
    /// Whether this thread is an engine's, within a callback.
    static IS_ENGINE: Cell<bool> = const { Cell::new(false) };
}

/// One call of the library. `call` gives it the error to fill.
pub(crate) fn call(call: impl FnOnce(*mut wi_error) -> wi_status) -> Result<()> {
    let mut error = MaybeUninit::<wi_error>::uninit();
    let fields = error.as_mut_ptr();
    // SAFETY: writes within `error`. The library writes the rest if the call fails, and nothing else ever reads it.
    unsafe {
        addr_of_mut!((*fields).struct_size).write(size_of::<wi_error>() as u32);
        addr_of_mut!((*fields).native_code).write(0);
        addr_of_mut!((*fields).message[0]).write(0);
    }
    CALLS.set(CALLS.get() + 1);
    let status = call(fields);
    CALLS.set(CALLS.get() - 1);
    if let Some(panic) = PANIC.take() {
        resume_unwind(panic);
    }
    match status {
        WI_OK => Ok(()),
        // SAFETY: the three fields above are written, and a message ends with NUL.
        failed => Err(unsafe { Error::from_raw(failed, fields) }),
    }
}

/// Runs a callback of the host's within a call. None: it has panicked, now or before; the call is to be ended.
pub(crate) fn guard<R>(callback: impl FnOnce() -> R) -> Option<R> {
    if let Some(panic) = PANIC.take() {
        PANIC.set(Some(panic));
        return None;
    }
    match catch_unwind(AssertUnwindSafe(callback)) {
        Ok(value) => Some(value),
        Err(panic) => {
            PANIC.set(Some(panic));
            None
        }
    }
}

/// Whether the library was called by this thread, rather than calling from a thread of its own.
pub(crate) fn is_inside_call() -> bool {
    CALLS.get() > 0
}

/// Runs a callback of the host's that the engine makes on its own thread, and that must not unwind.
pub(crate) fn on_engine(callback: impl FnOnce()) {
    let before = IS_ENGINE.replace(true);
    callback();
    IS_ENGINE.set(before);
}

/// Whether this thread would wait for itself if it waited for the engine.
pub(crate) fn is_engine() -> bool {
    IS_ENGINE.get()
}

/// done and total so far; Break ends the call.
pub(crate) type Progress<'a> = Box<dyn FnMut(u64, u64) -> ControlFlow<()> + 'a>;

/// The callback and its argument, valid as long as `progress`.
pub(crate) fn raw_progress(progress: &mut Option<Progress<'_>>) -> (wi_progress_callback, *mut c_void) {
    unsafe extern "C" fn report(user: *mut c_void, done: u64, total: u64) -> i32 {
        // SAFETY: user is the function below, which nothing else uses during the call.
        let progress = unsafe { &mut *user.cast::<Progress<'_>>() };
        i32::from(guard(|| progress(done, total)) != Some(ControlFlow::Continue(())))
    }
    match progress {
        Some(function) => {
            let user: *mut Progress<'_> = function;
            (Some(report), user.cast())
        }
        None => (None, null_mut()),
    }
}

/// One of the library's reference-counted objects.
///
/// # Safety
/// The two functions are those of this object.
pub(crate) unsafe trait Object {
    const RETAIN: unsafe extern "C" fn(*mut Self) -> *mut Self;
    const RELEASE: unsafe extern "C" fn(*mut Self);
}
macro_rules! objects {
    ($($object:ident, $retain:ident, $release:ident;)*) => { $(
        // SAFETY: by their names.
        unsafe impl Object for $object {
            const RETAIN: unsafe extern "C" fn(*mut Self) -> *mut Self = $retain;
            const RELEASE: unsafe extern "C" fn(*mut Self) = $release;
        }
    )* };
}
objects! {
    wi_runtime, wi_runtime_retain, wi_runtime_release;
    wi_cancel, wi_cancel_retain, wi_cancel_release;
    wi_model, wi_model_retain, wi_model_release;
    wi_session, wi_session_retain, wi_session_release;
    wi_task, wi_task_retain, wi_task_release;
    wi_kv, wi_kv_retain, wi_kv_release;
}

/// One reference to such an object. Neither Send nor Sync: whoever has one says what the header allows.
pub(crate) struct Handle<T: Object>(NonNull<T>);

impl<T: Object> Handle<T> {
    /// Calls a function that makes an object.
    pub(crate) fn create(make: impl FnOnce(*mut *mut T, *mut wi_error) -> wi_status) -> Result<Handle<T>> {
        let mut made = null_mut();
        // Here before the call's panic goes on, if it has one: what was made is released then.
        let mut handle = None;
        let outcome = call(|error| {
            let status = make(&mut made, error);
            handle = NonNull::new(made).map(Handle);
            status
        });
        outcome.and_then(|()| handle.ok_or_else(|| Error::internal("a call made nothing")))
    }

    pub(crate) fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Object> Clone for Handle<T> {
    fn clone(&self) -> Self {
        // SAFETY: the handle is alive.
        unsafe { T::RETAIN(self.get()) };
        Handle(self.0)
    }
}

impl<T: Object> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: this reference is ours, and nobody can be inside a call with a handle that is dropped.
        unsafe { T::RELEASE(self.get()) };
    }
}

impl<T: Object> std::fmt::Debug for Handle<T> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{:p}", self.0)
    }
}

/// The library's structs with struct_size, which are all made here.
macro_rules! sized {
    ($name:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        #[allow(clippy::needless_update)] // some are given in full
        let value = waveinfer_sys::$name {
            struct_size: std::mem::size_of::<waveinfer_sys::$name>() as u32,
            $($field: $value,)*
            ..Default::default()
        };
        value
    }};
}
pub(crate) use sized;

/// A call that fills an array of which it says how long it is. `fill` takes pointer, capacity, count and error.
pub(crate) fn filled<T: Default + Clone>(
    guess: usize,
    mut fill: impl FnMut(*mut T, u64, *mut u64, *mut wi_error) -> wi_status,
) -> Result<Vec<T>> {
    let mut values = vec![T::default(); guess];
    loop {
        let mut count = 0;
        let capacity = values.len();
        let to = if capacity == 0 { null_mut() } else { values.as_mut_ptr() };
        let outcome = call(|error| fill(to, capacity as u64, &mut count, error));
        let needed = length(count)?;
        if needed > capacity {
            values.clear(); // with a capacity of 0 the call has only said what it needs
            values.try_reserve_exact(needed).map_err(|_| Error::memory(needed))?;
            values.resize(needed, T::default());
            continue;
        }
        outcome?;
        values.truncate(needed);
        return Ok(values);
    }
}

pub(crate) fn length(count: u64) -> Result<usize> {
    usize::try_from(count).map_err(|_| Error::memory(usize::MAX))
}

/// NUL-terminated, for the library.
pub(crate) fn c_string(name: &str, value: impl Into<Vec<u8>>) -> Result<CString> {
    CString::new(value)
        .map_err(|error| Error::argument(format!("{name} has a NUL byte at {}", error.nul_position())))
}

/// The library's numbers are signed; what is beyond them is refused by it as too large.
pub(crate) fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// A NUL-terminated array within one of the library's structs.
pub(crate) fn text_of(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A pointer and a length of the library's as a slice.
///
/// # Safety
/// Where length is not 0, so many values are there and stay as they are for 'a.
pub(crate) unsafe fn slice<'a, T>(from: *const T, length: u64) -> &'a [T] {
    if from.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: see above. What the library holds in memory fits usize.
    unsafe { std::slice::from_raw_parts(from, length as usize) }
}
