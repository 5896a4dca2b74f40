use waveinfer_sys::*;

use crate::call::{call, sized};
use crate::error::Result;
use crate::event::Event;
use crate::{Cancel, Session};

/// One [`Session::decode`] for each of many sessions of one model in one step, so that weights are read once for all
/// of them. Every session gets the token that it would have got alone; events come in the order of sessions.
///
/// ```
/// # fn f(sessions: &mut [waveinfer::Session]) -> waveinfer::Result<()> {
/// for event in waveinfer::decode_batch(sessions, None)? {
///     println!("{:?}", event.text);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As decode, for the batch as a whole: if one session fails, no session changes, and the message begins with which
/// one, as "sessions\[3\]: ". [`ErrorKind::Argument`](crate::ErrorKind::Argument) for sessions of several models.
pub fn decode_batch<'a>(
    sessions: impl IntoIterator<Item = &'a mut Session>,
    cancel: Option<&Cancel>,
) -> Result<Vec<Event<'a>>> {
    // Each is borrowed for 'a, and so are its event's texts.
    let sessions: Vec<*mut wi_session> =
        sessions.into_iter().map(|session: &'a mut Session| session.raw()).collect();
    let mut events = vec![sized!(wi_event {}); sessions.len()];
    // SAFETY: all arguments are valid, and no session can be there twice.
    call(|error| unsafe {
        let (start, count) = (sessions.as_ptr(), sessions.len() as u64);
        wi_batch_decode(start, count, Cancel::raw(cancel), events.as_mut_ptr(), error)
    })?;
    // SAFETY: valid until the next call on its session, which is borrowed.
    events.iter().map(|event| unsafe { Event::from_raw(event) }).collect()
}
