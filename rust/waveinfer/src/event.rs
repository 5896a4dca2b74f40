use waveinfer_sys::*;

use crate::call::slice;
use crate::error::{Error, Result};
use crate::Token;

/// What an event says about the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// One more token; the answer goes on.
    Token,
    /// The token ends the answer; text is what was held back: an incomplete code point, what might have become a
    /// stop string.
    End,
    /// The token completes one of the stop strings; text is what was held back before that.
    Stop,
    /// Of a task, without a token: its [`max_tokens`](crate::TaskOptions::max_tokens) tokens were written.
    Limit,
    /// Of a task, without a token: it was cancelled.
    Cancelled,
    /// A kind that this crate does not know, of a newer library; it ends the answer.
    Other(i32),
}

impl EventKind {
    fn from_raw(kind: i32) -> Self {
        match kind {
            WI_EVENT_TOKEN => Self::Token,
            WI_EVENT_END => Self::End,
            WI_EVENT_STOP => Self::Stop,
            WI_EVENT_LIMIT => Self::Limit,
            WI_EVENT_CANCELLED => Self::Cancelled,
            other => Self::Other(other),
        }
    }

    /// Whether it is the last one of its answer: everything but [`Token`](Self::Token).
    pub fn is_last(self) -> bool {
        self != Self::Token
    }
}

/// A token by name and its log-probability, as in [`Event`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct TokenLogprob {
    /// Its id, in [0, vocab).
    pub token: Token,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

const _: () = assert!(
    std::mem::size_of::<TokenLogprob>() == std::mem::size_of::<wi_token_logprob>()
        && std::mem::offset_of!(TokenLogprob, token) == std::mem::offset_of!(wi_token_logprob, token)
        && std::mem::offset_of!(TokenLogprob, logprob) == std::mem::offset_of!(wi_token_logprob, logprob)
);

/// One step of an answer. It borrows what it was got from: the next call on that is the end of it.
///
/// ```compile_fail,E0499
/// # fn f(session: &mut waveinfer::Session) -> waveinfer::Result<()> {
/// let event = session.decode()?;
/// session.decode()?; // the event's text is gone
/// println!("{}", event.text);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// What it says.
    pub kind: EventKind,
    /// The token, in [0, vocab); None in events that have none.
    pub token: Option<Token>,
    /// What there is to tell of the answer now: whole code points, U+FFFD for what can never become one; empty
    /// while a code point is incomplete, and for control tokens.
    pub text: &'a str,
    /// Natural logarithm of the token's probability under the model itself: softmax of its logits as
    /// [`Session::logits`](crate::Session::logits) gives them, at temperature 1, over the whole vocabulary, before
    /// bias, callback, penalty and cuts.
    pub logprob: f32,
    /// The likeliest tokens under the same softmax, best first, of equals the lower id, if
    /// [`Sampling::top_logprobs`](crate::Sampling::top_logprobs) asks for them.
    pub top: &'a [TokenLogprob],
}

impl Event<'_> {
    /// # Safety
    /// Its text and list stay as they are for as long as the event is there.
    pub(crate) unsafe fn from_raw(raw: &wi_event) -> Result<Self> {
        // SAFETY: see above; a TokenLogprob is a wi_token_logprob.
        let (text, top) =
            unsafe { (slice(raw.text.cast(), raw.text_length), slice(raw.top.cast(), raw.top_count)) };
        Ok(Self {
            kind: EventKind::from_raw(raw.kind),
            token: Some(raw.token).filter(|&token| token >= 0),
            text: std::str::from_utf8(text).map_err(|_| Error::internal("an event's text is no UTF-8"))?,
            logprob: raw.logprob,
            top,
        })
    }

    /// A copy that borrows nothing.
    pub fn to_owned(&self) -> OwnedEvent {
        OwnedEvent {
            kind: self.kind,
            token: self.token,
            text: self.text.to_owned(),
            logprob: self.logprob,
            top: self.top.to_vec(),
        }
    }
}

/// An [`Event`] that borrows nothing; what iterators and streams give.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OwnedEvent {
    /// What it says.
    pub kind: EventKind,
    /// The token; None in events that have none.
    pub token: Option<Token>,
    /// What there is to tell of the answer now.
    pub text: String,
    /// Natural logarithm of the token's probability, as in [`Event`].
    pub logprob: f32,
    /// The likeliest tokens, best first.
    pub top: Vec<TokenLogprob>,
}
