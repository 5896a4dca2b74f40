use waveinfer_sys::*;

use crate::call::Handle;
use crate::error::Result;

/// A flag that ends long calls: fired from any thread, or from a signal handler, it makes the calls that it was
/// given to return [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), within 100 ms in a prefill, within one
/// layer in a decode step. One that has fired before ends a call at once. What the call was on is as it was.
///
/// Clones are the same flag. Options take it ([`ModelOptions::cancel`](crate::ModelOptions::cancel),
/// [`SessionOptions::cancel`](crate::SessionOptions::cancel)), and a session has one for all its calls
/// ([`Session::set_cancel`](crate::Session::set_cancel)).
///
/// ```
/// # fn main() -> waveinfer::Result<()> {
/// let cancel = waveinfer::Cancel::new()?;
/// let remote = cancel.clone();
/// std::thread::spawn(move || remote.trigger()).join().unwrap();
/// cancel.reset(); // usable again
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cancel(Handle<wi_cancel>);

// SAFETY: the header: cancel tokens may be used from any number of threads at once.
unsafe impl Send for Cancel {}
unsafe impl Sync for Cancel {}

impl Cancel {
    /// A token that has not fired.
    pub fn new() -> Result<Self> {
        // SAFETY: the output is valid.
        Handle::create(|out, error| unsafe { wi_cancel_create(out, error) }).map(Self)
    }

    /// Fires: calls that were given the token, now or later, end. Nothing but an atomic store, and so allowed in
    /// signal handlers.
    pub fn trigger(&self) {
        // SAFETY: the handle is alive.
        unsafe { wi_cancel_trigger(self.0.get()) }
    }

    /// Makes the token usable again, for calls that begin afterwards.
    pub fn reset(&self) {
        // SAFETY: the handle is alive.
        unsafe { wi_cancel_reset(self.0.get()) }
    }

    pub(crate) fn raw(cancel: Option<&Self>) -> *mut wi_cancel {
        cancel.map_or(std::ptr::null_mut(), |cancel| cancel.0.get())
    }
}
