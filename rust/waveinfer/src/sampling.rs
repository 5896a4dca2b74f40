use std::ffi::c_void;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null;
use std::sync::{Arc, Mutex, PoisonError};

use waveinfer_sys::*;

use crate::call::{guard, int, is_inside_call, on_engine, sized, Panic};
use crate::error::Result;
use crate::Token;

type LogitsFunction = dyn Fn(&mut [f32]) -> ControlFlow<()> + Send + Sync;

/// How decode picks a token from the logits: bias, callback, penalty, temperature, top_k, min_p, top_p, in this
/// order. The default is greedy: always the best token.
///
/// Deterministic: the same seed and the same logits give the same tokens, on every machine. Where nothing is left
/// to pick, decode fails with [`ErrorKind::State`](crate::ErrorKind::State).
///
/// ```
/// use waveinfer::Sampling;
/// let sampling = Sampling::new().temperature(0.8).top_p(0.95).seed(7).stop("\nUser:").top_logprobs(3);
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Sampling {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    repetition_window: u32,
    seed: u64,
    logit_bias: Vec<(Token, f32)>,
    logits: Option<Arc<LogitsFunction>>,
    stops: Vec<Vec<u8>>,
    top_logprobs: u32,
}

impl Sampling {
    /// Greedy.
    pub fn new() -> Self {
        Self::default()
    }

    /// 0 to 100. Default: 0, greedy.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = temperature;
        self
    }

    /// Keeps so many best tokens. Default: all.
    pub fn top_k(mut self, tokens: u32) -> Self {
        self.top_k = tokens;
        self
    }

    /// Keeps the best tokens that have this probability together, in (0, 1]. Default: all.
    pub fn top_p(mut self, probability: f32) -> Self {
        self.top_p = probability;
        self
    }

    /// Drops tokens that are less likely than this share of the best one, in [0, 1). Default: none.
    pub fn min_p(mut self, share: f32) -> Self {
        self.min_p = share;
        self
    }

    /// Positive logits of recent tokens are divided by it, negative ones multiplied; in (0, 100]. Default: 1, off.
    pub fn repetition_penalty(mut self, penalty: f32) -> Self {
        self.repetition_penalty = penalty;
        self
    }

    /// Recent tokens that the penalty looks at. Default: 64.
    pub fn repetition_window(mut self, tokens: u32) -> Self {
        self.repetition_window = tokens;
        self
    }

    /// Where the random numbers start. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Adds `bias` to the logit of `token`, in [0, vocab); `f32::NEG_INFINITY` forbids it. Several of one token add
    /// up.
    pub fn logit_bias(mut self, token: Token, bias: f32) -> Self {
        self.logit_bias.push((token, bias));
        self
    }

    /// Changes the logits that a token is about to be sampled from, in place: (vocab) of them, after the bias,
    /// before penalty and temperature; `f32::NEG_INFINITY` forbids a token. The model's own logits, those that
    /// [`Session::logits`](crate::Session::logits) gives and log-probabilities come from, stay as they are.
    ///
    /// Forks inherit it and may run on other threads. `ControlFlow::Break` ends the call with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), a panic too, and goes on after it; in a task, when its
    /// last event is fetched. It may be called again for the same token if the call fails after it. It must not
    /// use the session. It is not saved with a session.
    pub fn logits(mut self, change: impl Fn(&mut [f32]) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        self.logits = Some(Arc::new(change));
        self
    }

    /// One more string that ends an answer, of 1 to 1024 bytes, at most 64 of them. Text that may yet become one is
    /// held back until that is decided; when one is complete the event is
    /// [`EventKind::Stop`](crate::EventKind::Stop), and neither it nor what its last token has beyond it is ever
    /// told.
    pub fn stop(mut self, text: impl AsRef<[u8]>) -> Self {
        self.stops.push(text.as_ref().to_vec());
        self
    }

    /// How many of the likeliest tokens an event lists, up to 64. Default: none.
    pub fn top_logprobs(mut self, tokens: u32) -> Self {
        self.top_logprobs = tokens;
        self
    }

    /// Calls with the library's struct, and gives the callback that has to live as long as a session uses it.
    pub(crate) fn with_raw<R>(
        sampling: Option<&Self>,
        call: impl FnOnce(*const wi_sampling_params) -> Result<R>,
    ) -> Result<(R, Option<Arc<LogitsHook>>)> {
        let Some(of) = sampling else { return Ok((call(null())?, None)) };
        let hook =
            of.logits.clone().map(|function| Arc::new(LogitsHook { function, panics: Mutex::default() }));
        let bias: Vec<_> = of.logit_bias.iter().map(|&(token, bias)| wi_logit_bias { token, bias }).collect();
        let stop = |text: &Vec<u8>| wi_text { text: text.as_ptr().cast(), length: text.len() as u64 };
        let stops: Vec<_> = of.stops.iter().map(stop).collect();
        let user = hook.as_ref().map_or(null(), Arc::as_ptr);
        let result = call(&sized!(wi_sampling_params {
            temperature: of.temperature,
            top_k: int(of.top_k),
            top_p: of.top_p,
            min_p: of.min_p,
            repetition_penalty: of.repetition_penalty,
            repetition_window: int(of.repetition_window),
            seed: of.seed,
            logit_bias: bias.as_ptr(),
            logit_bias_count: bias.len() as u64,
            logits_callback: hook.as_ref().map(|_| change as unsafe extern "C" fn(_, _, _) -> _),
            logits_user: user.cast_mut().cast(),
            stops: stops.as_ptr(),
            stop_count: stops.len() as u64,
            top_logprobs: int(of.top_logprobs),
        }))?;
        Ok((result, hook))
    }
}

impl fmt::Debug for Sampling {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Sampling")
            .field("temperature", &self.temperature)
            .field("top_k", &self.top_k)
            .field("top_p", &self.top_p)
            .field("min_p", &self.min_p)
            .field("repetition_penalty", &self.repetition_penalty)
            .field("repetition_window", &self.repetition_window)
            .field("seed", &self.seed)
            .field("logit_bias", &self.logit_bias)
            .field("logits", &self.logits.is_some())
            .field("stops", &self.stops)
            .field("top_logprobs", &self.top_logprobs)
            .finish()
    }
}

/// A logits callback as sessions of the library know it. Every session that may call it has a share of it.
pub(crate) struct LogitsHook {
    function: Arc<LogitsFunction>,
    /// What it panicked with on the engine's thread, until the hosts of the tasks that it ended fetch it.
    panics: Mutex<Vec<Panic>>,
}

/// Panics that nobody fetches, as their tasks were dropped, are not kept for ever.
const MOST_PANICS: usize = 64;

impl LogitsHook {
    pub(crate) fn take_panic(&self) -> Option<Panic> {
        self.panics.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep_panic(&self, panic: Panic) {
        let mut panics = self.panics.lock().unwrap_or_else(PoisonError::into_inner);
        if panics.len() == MOST_PANICS {
            panics.remove(0);
        }
        panics.push(panic);
    }
}

impl fmt::Debug for LogitsHook {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("LogitsHook")
    }
}

unsafe extern "C" fn change(user: *mut c_void, logits: *mut f32, vocab: u64) -> i32 {
    // SAFETY: user is a hook that outlives the session which calls; logits has vocab floats.
    let (hook, logits) = unsafe {
        let logits = std::slice::from_raw_parts_mut(logits, vocab as usize);
        (&*user.cast_const().cast::<LogitsHook>(), logits)
    };
    let flow = if is_inside_call() {
        guard(|| (hook.function)(logits))
    } else {
        let mut flow = None;
        on_engine(|| {
            let outcome = catch_unwind(AssertUnwindSafe(|| (hook.function)(logits)));
            flow = outcome.map_err(|panic| hook.keep_panic(panic)).ok();
        });
        flow
    };
    i32::from(flow != Some(ControlFlow::Continue(())))
}
