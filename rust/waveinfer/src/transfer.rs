//! The host's readers and writers behind the library's callbacks.

use std::ffi::c_void;
use std::io::{self, Read, Write};

use waveinfer_sys::*;

use crate::call::{guard, sized};
use crate::error::{Error, Result};

const EIO: i32 = 5;

/// The status of an operation: of its error what C can carry, the rest is kept.
fn status(outcome: Option<io::Result<()>>, failure: &mut Option<io::Error>) -> i32 {
    match outcome {
        Some(Ok(())) => 0,
        Some(Err(error)) => {
            let code = error.raw_os_error().filter(|&code| code != 0).unwrap_or(EIO);
            *failure = Some(error);
            code
        }
        None => EIO, // a panic, which goes on after the call
    }
}

struct Source<'a> {
    from: &'a mut dyn Read,
    at: u64,
    failure: Option<io::Error>,
}

/// Runs a call that reads `bytes` bytes of `from`.
pub(crate) fn reading<T>(
    from: &mut dyn Read,
    bytes: u64,
    call: impl FnOnce(&wi_reader) -> Result<T>,
) -> Result<T> {
    unsafe extern "C" fn read(user: *mut c_void, offset: u64, to: *mut c_void, count: u64) -> i32 {
        // SAFETY: user is the Source below, which nothing else uses during the call.
        let source = unsafe { &mut *user.cast::<Source<'_>>() };
        let outcome = guard(|| {
            if offset != source.at {
                let what = format!("asked for byte {offset}, but {} is next", source.at);
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            let count = count as usize;
            // SAFETY: to has room for so many bytes. A reader may look at what it is given, hence the zeros.
            let to = unsafe {
                to.write_bytes(0, count);
                std::slice::from_raw_parts_mut(to.cast::<u8>(), count)
            };
            source.from.read_exact(to)?;
            source.at += count as u64;
            Ok(())
        });
        status(outcome, &mut source.failure)
    }
    let mut source = Source { from, at: 0, failure: None };
    let user: *mut Source<'_> = &mut source;
    let outcome = call(&sized!(wi_reader { bytes: bytes, read: Some(read), user: user.cast() }));
    outcome.map_err(|error| error.caused_by(source.failure.take()))
}

struct Sink<'a> {
    to: &'a mut dyn Write,
    failure: Option<io::Error>,
}

/// Runs a call that writes to `to`.
pub(crate) fn writing(to: &mut dyn Write, call: impl FnOnce(&wi_writer) -> Result<()>) -> Result<()> {
    unsafe extern "C" fn write(user: *mut c_void, from: *const c_void, count: u64) -> i32 {
        // SAFETY: user is the Sink below, which nothing else uses during the call; from has so many bytes.
        let (sink, from) =
            unsafe { (&mut *user.cast::<Sink<'_>>(), crate::call::slice(from.cast::<u8>(), count)) };
        let outcome = guard(|| sink.to.write_all(from));
        status(outcome, &mut sink.failure)
    }
    let mut sink = Sink { to, failure: None };
    let user: *mut Sink<'_> = &mut sink;
    let outcome = call(&sized!(wi_writer { write: Some(write), user: user.cast() }));
    outcome.map_err(|error| error.caused_by(sink.failure.take()))?;
    sink.to.flush().map_err(|error| Error::io(error, "flush"))
}
