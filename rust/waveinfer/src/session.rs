use std::fmt;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use waveinfer_sys::*;

use crate::call::{call, filled, int, length, raw_progress, sized, Handle, Progress};
use crate::error::{Error, Result};
use crate::event::{Event, OwnedEvent};
use crate::model::TokenizeFlags;
use crate::runtime::c_path;
use crate::sampling::LogitsHook;
use crate::stats::{SessionStats, StatsReader};
use crate::{transfer, Cancel, Model, Policy, Sampling, Token};

/// One token sequence with its KV cache and its sampler.
///
/// It takes memory only as tokens come. One thread uses it at a time, not always the same one: it is [`Send`] and
/// not [`Sync`], and [`stats_reader`](Self::stats_reader) is for the others.
///
/// ```
/// # fn main() -> waveinfer::Result<()> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/model/needle-f16.gguf");
/// use waveinfer::{EventKind, Model, Runtime, Session, TokenizeFlags};
///
/// let model = Model::open(&Runtime::new()?, path)?;
/// let mut session = Session::new(&model)?;
/// session.append_text("In the beginning", TokenizeFlags::ADD_BOS)?;
/// for _ in 0..16 {
///     let event = session.decode()?;
///     print!("{}", event.text);
///     if event.kind != EventKind::Token {
///         break;
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// It can go to another thread, but not be used by two:
///
/// ```compile_fail,E0277
/// # fn f(session: waveinfer::Session) {
/// let shared = &session;
/// std::thread::scope(|scope| {
///     scope.spawn(|| shared.token_count()); // Session is not Sync
/// });
/// # }
/// ```
///
/// Once it is gone, nothing can be done with it, nor with what it told:
///
/// ```compile_fail,E0505
/// # fn f(mut session: waveinfer::Session) -> waveinfer::Result<()> {
/// let event = session.decode()?;
/// drop(session);
/// println!("{}", event.text);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Session {
    // In the order in which they go: nothing is called or read any more once the session is released.
    raw: Handle<wi_session>,
    /// Callbacks that the sampler may call: one, or more where it is unknown whether a task came to set its own.
    hooks: Vec<Arc<LogitsHook>>,
    cancel: Option<Cancel>,
    model: Model,
}

// SAFETY: the header: a session is used by one thread at a time, not always the same one. Its callbacks are Send
// and Sync.
unsafe impl Send for Session {}

impl Session {
    /// An empty session with default options.
    ///
    /// # Errors
    /// As [`SessionOptions::create`].
    pub fn new(model: &Model) -> Result<Self> {
        SessionOptions::new().create(model)
    }

    /// Reads a session back, all as it was saved.
    ///
    /// # Errors
    /// As [`SessionOptions::load`].
    pub fn load(model: &Model, path: impl AsRef<Path>) -> Result<Self> {
        SessionOptions::new().load(model, path)
    }

    /// Whose session it is.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Gives a token to all calls on this session from now on, or none. Forks start without one.
    ///
    /// ```
    /// # fn f(session: &mut waveinfer::Session) -> waveinfer::Result<()> {
    /// let cancel = waveinfer::Cancel::new()?;
    /// session.set_cancel(Some(&cancel));
    /// cancel.trigger(); // from wherever
    /// assert_eq!(session.prefill(&[1, 2]).unwrap_err().kind(), waveinfer::ErrorKind::Cancelled);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_cancel(&mut self, cancel: Option<&Cancel>) {
        self.cancel = cancel.cloned();
    }

    /// Appends tokens, in [0, vocab), and computes their keys and values, in chunks. They attend exactly to
    /// everything before them, unless [`sparse_read_tokens`](SessionOptions::sparse_read_tokens) says otherwise.
    /// Full segments are sealed on the way. In pieces it gives the same as at once. What events still held back of
    /// a text is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if keys or values are beyond the session's KV
    /// type, naming the layer and the types that hold them, or the session would be longer than
    /// [`max_positions`](crate::ModelInfo::max_positions) where that is enforced;
    /// [`ErrorKind::Budget`](crate::ErrorKind::Budget), [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled); of the
    /// slow tier [`ErrorKind::Io`](crate::ErrorKind::Io), if its disk fails, and
    /// [`ErrorKind::Format`](crate::ErrorKind::Format), if the file that the session was loaded from was damaged
    /// meanwhile. The session is as it was before the call.
    pub fn prefill(&mut self, tokens: &[Token]) -> Result<()> {
        self.prefill_with(tokens, PrefillOptions::new())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn prefill_with(&mut self, tokens: &[Token], options: PrefillOptions<'_>) -> Result<()> {
        let (session, cancel) = (self.raw(), self.raw_cancel());
        let (start, count) = (tokens.as_ptr(), tokens.len() as u64);
        // SAFETY: all arguments are valid.
        options.with_raw(|params, error| unsafe {
            wi_session_prefill(session, start, count, params, cancel, error)
        })
    }

    /// Tokenises and prefills. The text is UTF-8 by intent; bytes that are none are taken as they are.
    ///
    /// # Errors
    /// As [`Model::tokenize`] and [`prefill`](Self::prefill).
    pub fn append_text(&mut self, text: impl AsRef<[u8]>, flags: TokenizeFlags) -> Result<()> {
        self.append_text_with(text, flags, PrefillOptions::new())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`append_text`](Self::append_text).
    pub fn append_text_with(
        &mut self,
        text: impl AsRef<[u8]>,
        flags: TokenizeFlags,
        options: PrefillOptions<'_>,
    ) -> Result<()> {
        let (session, cancel) = (self.raw(), self.raw_cancel());
        let text = text.as_ref();
        let (start, count) = (text.as_ptr().cast(), text.len() as u64);
        // SAFETY: all arguments are valid.
        options.with_raw(|params, error| unsafe {
            wi_session_append_text(session, start, count, flags.0, params, cancel, error)
        })
    }

    /// Appends one token: samples it from the logits of the last computed one. The new token is pending: its own
    /// keys and values are computed by the next call that needs them, so that the first token of an answer costs
    /// no step, and the last one neither. The token that ends an answer is in the session like any other, and the
    /// host may go on: decode more, append the next question, or truncate.
    ///
    /// # Errors
    /// [`ErrorKind::State`](crate::ErrorKind::State) if the session is empty, or bias, callback or the model itself
    /// leave no token to sample; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the token before has
    /// keys or values beyond the KV type, or is beyond [`max_positions`](crate::ModelInfo::max_positions) where that is
    /// enforced; [`ErrorKind::Budget`](crate::ErrorKind::Budget), [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled);
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) and [`ErrorKind::Format`](crate::ErrorKind::Format) of the slow
    /// tier, as [`prefill`](Self::prefill). No token is lost and none is added, and the random numbers are where they
    /// were.
    pub fn decode(&mut self) -> Result<Event<'_>> {
        let mut event = sized!(wi_event {});
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_session_decode(self.raw(), self.raw_cancel(), &mut event, error) })?;
        // SAFETY: valid until the next call on the session, and those take what is borrowed here.
        unsafe { Event::from_raw(&event) }
    }

    /// Appends one token, in [0, vocab), that the host chose, exactly as decode appends one that it sampled. With
    /// [`logits`](Self::logits) this is decode with a sampler of one's own, at the cost of decode.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn accept(&mut self, token: Token) -> Result<Event<'_>> {
        let mut event = sized!(wi_event {});
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_session_accept(self.raw(), token, self.raw_cancel(), &mut event, error) })?;
        // SAFETY: as in decode().
        unsafe { Event::from_raw(&event) }
    }

    /// The steps of an answer, by [`decode`](Self::decode), up to the one that ends it, or the first error.
    ///
    /// ```
    /// # fn f(session: &mut waveinfer::Session) -> waveinfer::Result<()> {
    /// let text: String =
    ///     session.answer().take(64).map(|event| Ok(event?.text)).collect::<waveinfer::Result<_>>()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn answer(&mut self) -> Answer<'_> {
        Answer { session: self, ended: false }
    }

    /// Logits of the last token, (vocab) of them, those that decode would sample from; computes them first if it is
    /// pending.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn logits(&mut self) -> Result<Vec<f32>> {
        let mut count = 0;
        // SAFETY: asks for the size, which computes nothing.
        call(|error| unsafe { wi_session_logits(self.raw(), null_mut(), null_mut(), 0, &mut count, error) })?;
        let mut logits = vec![0.0; length(count)?];
        self.logits_into(&mut logits)?;
        Ok(logits)
    }

    /// The same into memory of the host's own, at least (vocab) f32.
    ///
    /// # Errors
    /// As [`logits`](Self::logits); [`ErrorKind::Argument`](crate::ErrorKind::Argument) if `logits` is too short.
    pub fn logits_into(&mut self, logits: &mut [f32]) -> Result<()> {
        if logits.is_empty() {
            return Err(Error::argument("logits is empty".into())); // to C that is a question
        }
        let (to, capacity, mut count) = (logits.as_mut_ptr(), logits.len() as u64, 0);
        // SAFETY: all arguments are valid.
        call(|error| unsafe {
            wi_session_logits(self.raw(), self.raw_cancel(), to, capacity, &mut count, error)
        })
    }

    /// The ids of all tokens, the pending one included.
    pub fn tokens(&self) -> Result<Vec<Token>> {
        let guess = length(self.token_count()?)?;
        // SAFETY: all arguments are valid.
        filled(guess, |to, capacity, count, error| unsafe {
            wi_session_tokens(self.raw(), to, capacity, count, error)
        })
    }

    /// How many these are.
    pub fn token_count(&self) -> Result<u64> {
        let mut count = 0;
        // SAFETY: asks for the size.
        call(|error| unsafe { wi_session_tokens(self.raw(), null_mut(), 0, &mut count, error) })?;
        Ok(count)
    }

    /// A second session that goes on from here on its own: same tokens, parameters, logits and sampler state. It
    /// shares everything sealed and copies the rest when one of the two writes; takes microseconds. The two may be
    /// used by two threads at once.
    pub fn fork(&self) -> Result<Session> {
        // SAFETY: handle and output are valid.
        let raw = Handle::create(|out, error| unsafe { wi_session_fork(self.raw(), out, error) })?;
        Ok(Self { raw, hooks: self.hooks.clone(), cancel: None, model: self.model.clone() })
    }

    /// Cuts the session back to its first `tokens` tokens. The new last one is pending: its logits are computed by
    /// the next call that needs them. Where the last prefill ended, the session is as it was then, bit for bit. The
    /// sampler goes on where it is; [`set_sampling`](Self::set_sampling) starts it anew.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for more than there are;
    /// [`ErrorKind::Budget`](crate::ErrorKind::Budget), [`ErrorKind::Memory`](crate::ErrorKind::Memory): for a
    /// moment a cut segment and what is left of it are both held; [`ErrorKind::Io`](crate::ErrorKind::Io) and
    /// [`ErrorKind::Format`](crate::ErrorKind::Format) of the slow tier, as [`prefill`](Self::prefill). The session is
    /// as it was.
    pub fn truncate(&mut self, tokens: u64) -> Result<()> {
        // SAFETY: the handle is valid.
        call(|error| unsafe { wi_session_truncate(self.raw(), tokens, error) })
    }

    /// Writes the session to a file: tokens, KV, index, sampler, parameters; checksummed. The file appears whole or
    /// not at all, and an older file at `path` survives any failure.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io); [`ErrorKind::Format`](crate::ErrorKind::Format) if the file that the
    /// session was loaded from was damaged meanwhile; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path("path", path.as_ref())?;
        // SAFETY: all arguments are valid.
        call(|error| unsafe { wi_session_save(self.raw(), path.as_ptr(), self.raw_cancel(), error) })
    }

    /// The same bytes to a writer, in pieces of at most 1 MiB and a little, and flushed. After a failure what was
    /// written is of no use. A panic of the writer ends the call and goes on after it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) as the writer says, whose error is the source, or of the slow tier;
    /// [`ErrorKind::Format`](crate::ErrorKind::Format) as [`save`](Self::save);
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub fn save_to(&mut self, mut to: impl Write) -> Result<()> {
        transfer::writing(&mut to, |writer| {
            // SAFETY: all arguments are valid.
            call(|error| unsafe { wi_session_save_to(self.raw(), writer, self.raw_cancel(), error) })
        })
    }

    /// Bytes that a save of the session as it is now takes. Costs microseconds.
    pub fn saved_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_session_saved_bytes(self.raw(), &mut bytes, error) })?;
        Ok(bytes)
    }

    /// Replaces the sampling parameters and starts their random numbers anew from the seed. Text that was held back
    /// stays so, and the new stop strings decide about it with the next token.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for a bias of a token beyond the vocabulary.
    pub fn set_sampling(&mut self, sampling: &Sampling) -> Result<()> {
        let ((), hook) = Sampling::with_raw(Some(sampling), |params| {
            // SAFETY: all arguments are valid; the callback is kept below.
            call(|error| unsafe { wi_session_set_sampling(self.raw(), params, error) })
        })?;
        self.hooks = hook.into_iter().collect();
        Ok(())
    }

    /// What the session has done, as of the end of its last call.
    pub fn stats(&self) -> Result<SessionStats> {
        // SAFETY: handle and output are valid.
        SessionStats::get(|out, error| unsafe { wi_session_get_stats(self.raw(), out, error) })
    }

    /// The same for any thread at any time.
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader::of_session(&self.raw, &self.model)
    }

    pub(crate) fn raw(&self) -> *mut wi_session {
        self.raw.get()
    }

    pub(crate) fn hooks(&mut self) -> &mut Vec<Arc<LogitsHook>> {
        &mut self.hooks
    }

    fn raw_cancel(&self) -> *mut wi_cancel {
        Cancel::raw(self.cancel.as_ref())
    }
}

/// The steps of an answer: [`Session::answer`].
#[derive(Debug)]
#[must_use = "iterators are lazy"]
pub struct Answer<'a> {
    session: &'a mut Session,
    ended: bool,
}

impl Iterator for Answer<'_> {
    type Item = Result<OwnedEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = self.session.decode().map(|event| event.to_owned());
        self.ended = event.as_ref().map_or(true, |event| event.kind.is_last());
        Some(event)
    }
}

impl std::iter::FusedIterator for Answer<'_> {}

/// Of one prefill. What is not set has its default.
#[derive(Default)]
#[must_use]
pub struct PrefillOptions<'a> {
    chunk_tokens: u32,
    progress: Option<Progress<'a>>,
    logits: Option<&'a mut [f32]>,
}

impl<'a> PrefillOptions<'a> {
    /// All defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens computed at once, at most 1048576. Default: chosen by the library.
    pub fn chunk_tokens(mut self, tokens: u32) -> Self {
        self.chunk_tokens = tokens;
        self
    }

    /// Is told of tokens done and of tokens in this call: after each chunk, and at least every 250 ms within one, with
    /// the same numbers again. While its text is tokenised: 0 and the text's bytes. `ControlFlow::Break` ends the
    /// call with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and so does a panic, which goes on after it.
    pub fn progress(mut self, progress: impl FnMut(u64, u64) -> ControlFlow<()> + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Takes the logits of every token of the call: at least (tokens, vocab) f32. Unspecified after a failure.
    pub fn logits(mut self, logits: &'a mut [f32]) -> Self {
        self.logits = Some(logits);
        self
    }

    fn with_raw(
        mut self,
        prefill: impl FnOnce(*const wi_prefill_params, *mut wi_error) -> wi_status,
    ) -> Result<()> {
        let (progress, progress_user) = raw_progress(&mut self.progress);
        let (logits, capacity) = self.logits.map_or((null_mut(), 0), |to| (to.as_mut_ptr(), to.len() as u64));
        let params = sized!(wi_prefill_params {
            chunk_tokens: int(self.chunk_tokens),
            progress: progress,
            progress_user: progress_user,
            logits: logits,
            logits_capacity: capacity,
        });
        call(|error| prefill(&params, error))
    }
}

impl fmt::Debug for PrefillOptions<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("PrefillOptions")
            .field("chunk_tokens", &self.chunk_tokens)
            .field("progress", &self.progress.is_some())
            .field("logits", &self.logits.as_ref().map(|logits| logits.len()))
            .finish()
    }
}

/// How to make a [`Session`], load one, or fork one under other parameters. What is not set has its default; when
/// a session is loaded, it is as it was saved.
///
/// ```
/// # fn f(model: &waveinfer::Model) -> waveinfer::Result<()> {
/// use waveinfer::{Policy, Sampling, SessionOptions};
///
/// let options = SessionOptions::new()
///     .policy(Policy::wave().budget(0.03))
///     .sampling(Sampling::new().temperature(0.7).seed(1));
/// let plan = options.plan_memory(model, 100_000)?;
/// assert!(plan.fits);
/// let session = options.create(model)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until create(), load() or fork()"]
pub struct SessionOptions {
    kv_type: KvType,
    policy: Option<Policy>,
    sampling: Option<Sampling>,
    kv_budget_bytes: u64,
    sparse_read_tokens: i32,
    prefix_reuse: PrefixReuse,
    kv_fast_share: f32,
    cancel: Option<Cancel>,
}

impl SessionOptions {
    /// All defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Type of stored keys and values. Default: f16, or as saved when a session is loaded, for which f16 stands.
    pub fn kv_type(mut self, kv_type: KvType) -> Self {
        self.kv_type = kv_type;
        self
    }

    /// How the past is indexed and what a query reads of it.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// How decode picks tokens. Default: greedy.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = Some(sampling);
        self
    }

    /// Most bytes of this session's KV and index, shared segments included; `u64::MAX`: no such budget, where a
    /// saved session has one. Default: only the runtime's counts.
    pub fn kv_budget_bytes(mut self, bytes: u64) -> Self {
        self.kv_budget_bytes = bytes;
        self
    }

    /// Chunks of at most so many tokens, appended to a past that has segments, read it through the policy as a
    /// decode step does, so that the answer to a short question starts within a few steps' time; negative: none,
    /// where a saved session has some. Default: every appended token attends exactly to everything before it.
    pub fn sparse_read_tokens(mut self, tokens: i32) -> Self {
        self.sparse_read_tokens = tokens;
        self
    }

    /// Whether a prompt that starts as another living session's did takes over its sealed segments instead of
    /// computing them.
    pub fn prefix_reuse(mut self, prefix_reuse: PrefixReuse) -> Self {
        self.prefix_reuse = prefix_reuse;
        self
    }

    /// With a [`spill_folder`](crate::RuntimeOptions::spill_folder), or on a device: the share of this session's sealed
    /// keys and values that may stay in fast memory, in (0, 1]; the rest is in the slow tier. Default: as much as the
    /// budgets have room for.
    pub fn kv_fast_share(mut self, share: f32) -> Self {
        self.kv_fast_share = share;
        self
    }

    /// Ends [`load`](Self::load), [`load_from`](Self::load_from) and [`fork`](Self::fork) when it fires. The
    /// session that they make starts without one: [`Session::set_cancel`].
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Makes an empty session.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for an unknown policy;
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for a value out of range.
    pub fn create(&self, model: &Model) -> Result<Session> {
        // SAFETY: all arguments are valid.
        self.make(model, |params, _, out, error| unsafe {
            wi_session_create(model.raw(), params, out, error)
        })
    }

    /// Reads a session back from a file. What is set must be as saved where it shapes what is stored (KV type, the
    /// policy's name, segment_tokens, decode_segment_tokens, tokens_per_centroid, kmeans_iterations), and applies
    /// where it does not. Sampling is taken whole, and its random numbers start from its seed; without it the saved
    /// sampler goes on where it was. To read a session through another policy, load it and [`fork`](Self::fork) it.
    ///
    /// In a runtime with a slow tier the sealed keys and values stay where they are in the file, which is kept open
    /// as long as a segment of it is needed. Nothing in the file is trusted.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io); [`ErrorKind::Format`](crate::ErrorKind::Format) for a file that is
    /// damaged, truncated, no session, or of a version that the library does not read;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a policy, a sampler or a section that it does
    /// not know, by name; [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) for another model or other
    /// parameters; [`ErrorKind::Budget`](crate::ErrorKind::Budget),
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub fn load(&self, model: &Model, path: impl AsRef<Path>) -> Result<Session> {
        let path = c_path("path", path.as_ref())?;
        // SAFETY: all arguments are valid.
        self.make(model, |params, cancel, out, error| unsafe {
            wi_session_load(model.raw(), path.as_ptr(), params, cancel, out, error)
        })
    }

    /// The same from the `bytes` bytes that a reader has, which are those of a save; all of it is read into memory.
    /// A panic of the reader ends the call and goes on after it.
    ///
    /// # Errors
    /// As [`load`](Self::load); [`ErrorKind::Io`](crate::ErrorKind::Io) as the reader says.
    pub fn load_from(&self, model: &Model, mut from: impl Read, bytes: u64) -> Result<Session> {
        transfer::reading(&mut from, bytes, |reader| {
            // SAFETY: all arguments are valid.
            self.make(model, |params, cancel, out, error| unsafe {
                wi_session_load_from(model.raw(), reader, params, cancel, out, error)
            })
        })
    }

    /// A fork under these options: the same tokens, keys, values and logits, read through another policy or another
    /// budget, without computing the prompt again. Where the policy and what shapes its index are the same,
    /// everything sealed is shared; else keys and values are copied and indexed anew. Without sampling the sampler
    /// goes on where it is, and without a KV type it is the session's; what else is not given is the default, not the
    /// session's.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) if the KV type is another than the session's;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for an unknown policy;
    /// [`ErrorKind::Budget`](crate::ErrorKind::Budget), [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled);
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) and [`ErrorKind::Format`](crate::ErrorKind::Format) of the slow
    /// tier, as [`Session::prefill`].
    pub fn fork(&self, session: &Session) -> Result<Session> {
        // SAFETY: all arguments are valid.
        let mut fork = self.make(&session.model, |params, cancel, out, error| unsafe {
            wi_session_fork_as(session.raw(), params, cancel, out, error)
        })?;
        if self.sampling.is_none() {
            fork.hooks.clone_from(&session.hooks);
        }
        Ok(fork)
    }

    /// What a session of so many tokens, prompt and answer together, at most 2147483647, would take, without making
    /// one.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn plan_memory(&self, model: &Model, tokens: u64) -> Result<MemoryPlan> {
        let mut plan = sized!(wi_memory_plan {});
        self.with_raw(|params| {
            // SAFETY: all arguments are valid.
            call(|error| unsafe { wi_model_plan_memory(model.raw(), params, tokens, &mut plan, error) })
        })?;
        Ok(MemoryPlan {
            fits: plan.fits != 0,
            weight_bytes: plan.weight_bytes,
            kv_bytes: plan.kv_bytes,
            index_bytes: plan.index_bytes,
            sealing_bytes: plan.sealing_bytes,
            scratch_bytes: plan.scratch_bytes,
            total_bytes: plan.total_bytes,
            max_tokens: plan.max_tokens,
            fast_bytes: plan.fast_bytes,
        })
    }

    fn with_raw<R>(
        &self,
        call: impl FnOnce(*const wi_session_params) -> Result<R>,
    ) -> Result<(R, Option<Arc<LogitsHook>>)> {
        Policy::with_raw(self.policy.as_ref(), |policy| {
            Sampling::with_raw(self.sampling.as_ref(), |sampling| {
                call(&sized!(wi_session_params {
                    kv_type: self.kv_type as i32,
                    policy: policy,
                    sampling: sampling,
                    kv_budget_bytes: self.kv_budget_bytes,
                    sparse_read_tokens: self.sparse_read_tokens,
                    prefix_reuse: self.prefix_reuse as i32,
                    kv_fast_share: self.kv_fast_share,
                }))
            })
        })
    }

    fn make(
        &self,
        model: &Model,
        make: impl FnOnce(
            *const wi_session_params,
            *mut wi_cancel,
            *mut *mut wi_session,
            *mut wi_error,
        ) -> wi_status,
    ) -> Result<Session> {
        let cancel = Cancel::raw(self.cancel.as_ref());
        let (raw, hook) =
            self.with_raw(|params| Handle::create(|out, error| make(params, cancel, out, error)))?;
        let hooks = hook.into_iter().collect();
        Ok(Session { raw, hooks, cancel: None, model: model.clone() })
    }
}

/// Type of stored keys and values. Scores, sums and merges are f32 with all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum KvType {
    /// 16 bits, 11 of them significant. When a session or a store is loaded: as saved, also where it is set.
    #[default]
    F16 = WI_KV_F16,
    /// 16 bits, 8 of them significant, with the range of f32.
    Bf16 = WI_KV_BF16,
    /// 32 bits: as they are computed.
    F32 = WI_KV_F32,
}

/// Whether a prompt takes over what another session has computed of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum PrefixReuse {
    /// From sessions with the same model and parameters: whole chunks, as far as their segments are those that the
    /// prompt would have itself. That changes no bit. When a session is loaded: as saved.
    #[default]
    Auto = WI_PREFIX_REUSE_AUTO,
    /// Never.
    Off = WI_PREFIX_REUSE_OFF,
    /// Less than a chunk, too, and what was read in other chunks; logits then differ by rounding.
    On = WI_PREFIX_REUSE_ON,
}

/// What a session of so many tokens would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// KV, index and sealing fit the budgets, and everything the memory that this process may use.
    pub fits: bool,
    /// If mapped, shared with other processes and taken back under pressure.
    pub weight_bytes: u64,
    /// Keys and values of all tokens, in layers with a sliding window too.
    pub kv_bytes: u64,
    /// At most.
    pub index_bytes: u64,
    /// Most that is needed besides while a segment is being built.
    pub sealing_bytes: u64,
    /// Activations, and what is read of the slow tier at a time, estimated; shared by the runtime's sessions that
    /// take turns.
    pub scratch_bytes: u64,
    /// Sum of these.
    pub total_bytes: u64,
    /// Most tokens that fit the budgets if this session has the runtime's to itself.
    pub max_tokens: u64,
    /// Of KV, index and sealing, what must be in fast memory where the runtime has a slow tier.
    pub fast_bytes: u64,
}
