use std::ffi::c_void;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use waveinfer_sys::*;

use crate::call::{call, is_engine, on_engine, sized, text_of, Handle, Panic};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, OwnedEvent};
use crate::model::TokenizeFlags;
use crate::sampling::LogitsHook;
use crate::stats::{SessionStats, StatsReader};
use crate::{Model, Sampling, Session, Token};

/// A session that the runtime works on by itself: it reads a prompt and writes an answer on the runtime's threads,
/// together with all other tasks, and the host fetches events when it likes.
///
/// Prompts are read in chunks between steps in which every task that writes gets its next token (continuous
/// batching; SPIN, section 5). A task gets exactly the tokens that the same calls would have given its session
/// alone. It waits until its memory fits beside the running ones'; waiting tasks are admitted by priority, then age.
///
/// The task owns its session until [`into_session`](Self::into_session) gives it back. Dropped before its end it is
/// cancelled, which waits for the engine's step to end only if the step may use memory of the host's: a logits
/// callback, or a model opened in memory.
///
/// ```
/// # fn main() -> waveinfer::Result<()> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/model/needle-f16.gguf");
/// use waveinfer::{Model, Runtime, Session, TaskOptions, TokenizeFlags};
///
/// let model = Model::open(&Runtime::new()?, path)?;
/// let mut task = TaskOptions::new()
///     .prompt_text("In the beginning", TokenizeFlags::ADD_BOS)
///     .max_tokens(8)
///     .submit(Session::new(&model)?)?;
/// for event in task.events() {
///     print!("{}", event?.text);
/// }
/// let session = task.into_session(); // goes on from there
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Task {
    running: Running,
    session: Session,
}

// SAFETY: the header: waiting, cancelling, information and statistics are any thread's, and polling any thread's, one
// at a time, for which it takes &mut self. The session is not given away.
unsafe impl Sync for Task {}

/// How to submit a [`Session`]. What is not set has its default.
#[derive(Default)]
#[must_use = "options do nothing until submit()"]
pub struct TaskOptions {
    priority: i32,
    tokens: Vec<Token>,
    text: Option<(Vec<u8>, TokenizeFlags)>,
    max_tokens: u64,
    sampling: Option<Sampling>,
    notify: Option<Box<dyn Fn() + Send + Sync>>,
}

impl TaskOptions {
    /// All defaults: without a prompt, the task goes on from what the session has.
    pub fn new() -> Self {
        Self::default()
    }

    /// -8 to 8, higher first; one more is twice the share of the time. Default: 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// The prompt, as tokens.
    pub fn prompt(mut self, tokens: impl Into<Vec<Token>>) -> Self {
        self.tokens = tokens.into();
        self
    }

    /// The prompt, as text; tokenised on the engine's thread, in pieces between others' steps.
    pub fn prompt_text(mut self, text: impl Into<Vec<u8>>, flags: TokenizeFlags) -> Self {
        self.text = Some((text.into(), flags));
        self
    }

    /// Of the answer. Default: until it ends; planned with 1024.
    pub fn max_tokens(mut self, tokens: u64) -> Self {
        self.max_tokens = tokens;
        self
    }

    /// As [`Session::set_sampling`] at the start. Default: the session's goes on.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = Some(sampling);
        self
    }

    /// Is called when the task has new events or has ended. It runs on the engine's thread, for which every task
    /// waits: it should only wake somebody. If it panics, the next call of [`Task::poll`] cancels the task and the
    /// panic goes on there. [`Task::wait`] and streams need no such function.
    pub fn notify(mut self, notify: impl Fn() + Send + Sync + 'static) -> Self {
        self.notify = Some(Box::new(notify));
        self
    }

    /// Hands the session to its runtime and returns at once. What goes wrong later is the task's.
    ///
    /// # Errors
    /// With the session as it was. [`ErrorKind::State`](crate::ErrorKind::State) if it is empty and there is no
    /// prompt; [`ErrorKind::Argument`](crate::ErrorKind::Argument) for a value out of range, or a prompt of both
    /// kinds.
    pub fn submit(self, mut session: Session) -> Result<Task, SubmitError> {
        let wakes = Arc::new(Wakes {
            notify: self.notify,
            has_panicked: AtomicBool::new(false),
            waker: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let (text, flags) = match &self.text {
            Some((text, flags)) => (text.as_slice(), *flags),
            None => (&[][..], TokenizeFlags::NONE),
        };
        let submitted = Sampling::with_raw(self.sampling.as_ref(), |sampling| {
            let params = sized!(wi_task_params {
                priority: self.priority,
                tokens: if self.tokens.is_empty() { null() } else { self.tokens.as_ptr() },
                token_count: self.tokens.len() as u64,
                text: if text.is_empty() { null() } else { text.as_ptr().cast() },
                text_length: text.len() as u64,
                tokenize_flags: flags.0,
                max_tokens: self.max_tokens,
                sampling: sampling,
                notify: Some(notify),
                notify_user: Arc::as_ptr(&wakes).cast_mut().cast(),
            });
            // SAFETY: all arguments are valid; what the callbacks need goes with the task.
            Handle::create(|out, error| unsafe { wi_task_submit(session.raw(), &params, out, error) })
        });
        let (raw, hook) = match submitted {
            Ok(submitted) => submitted,
            Err(error) => return Err(SubmitError { error, session: Box::new(session) }),
        };
        // Until it is known that the task has set its own sampling, the session may still call what it had.
        session.hooks().extend(hook.clone());
        let running = Running {
            raw: Arc::new(TaskHandle { raw, _wakes: wakes.clone() }),
            wakes,
            hooks: session.hooks().clone(),
            own_sampling: self.sampling.is_some().then_some(hook),
            model: session.model().clone(),
            ended: false,
        };
        Ok(Task { running, session })
    }
}

impl fmt::Debug for TaskOptions {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("TaskOptions")
            .field("priority", &self.priority)
            .field("prompt", &self.tokens.len())
            .field("prompt_text", &self.text.as_ref().map(|(text, _)| text.len()))
            .field("max_tokens", &self.max_tokens)
            .field("sampling", &self.sampling)
            .field("notify", &self.notify.is_some())
            .finish()
    }
}

/// Why a session was not submitted, and the session.
#[derive(Debug)]
pub struct SubmitError {
    error: Error,
    session: Box<Session>,
}

impl SubmitError {
    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The session, as it was.
    pub fn into_session(self) -> Session {
        *self.session
    }
}

impl From<SubmitError> for Error {
    fn from(refused: SubmitError) -> Self {
        refused.error
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(to)
    }
}

impl std::error::Error for SubmitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl Task {
    /// The oldest event that has not been fetched, if there is one now; never waits. The last one is not a
    /// [`EventKind::Token`](crate::EventKind::Token), and after it there are none.
    ///
    /// # Errors
    /// A task that failed has its error for a last event. A logits callback that panicked ends its task, and the
    /// panic goes on here.
    pub fn poll(&mut self) -> Result<Option<Event<'_>>> {
        let event = self.running.poll()?;
        // SAFETY: its text is the task's, valid until the next poll, which takes what is borrowed here.
        event.map(|event| unsafe { Event::from_raw(&event) }).transpose()
    }

    /// Waits for the next event. None after the last one.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        let event = loop {
            let event = self.running.poll()?;
            if event.is_some() || self.running.ended {
                break event;
            }
            self.wait(None)?;
        };
        // SAFETY: as in poll().
        event.map(|event| unsafe { Event::from_raw(&event) }).transpose()
    }

    /// The events that are still to come, each waited for, up to the last one or an error.
    pub fn events(&mut self) -> Events<'_> {
        Events { task: self, ended: false }
    }

    /// Waits until there are events to poll, or the task has ended; at most so long. Whether there are.
    ///
    /// # Errors
    /// [`ErrorKind::State`](crate::ErrorKind::State) in what the engine calls, if there are none: it would wait for
    /// itself.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let nanos = |timeout: Duration| i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        self.running.raw.wait(timeout.map_or(-1, nanos))
    }

    /// A file descriptor that is readable while there are events to poll, for epoll, poll and every event loop. It
    /// is the task's: the host neither reads nor closes it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the system has none left.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        let mut fd = -1;
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_task_get_fd(self.running.raw.get(), &mut fd, error) })?;
        // SAFETY: open as long as the task.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Ends the task within one step of the engine; it has its last event then,
    /// [`EventKind::Cancelled`](crate::EventKind::Cancelled). One that has ended stays as it is.
    pub fn cancel(&self) {
        self.running.raw.cancel();
    }

    /// Cancels this task from elsewhere.
    pub fn canceller(&self) -> TaskCanceller {
        TaskCanceller(self.running.raw.clone())
    }

    /// How far the task is.
    pub fn info(&self) -> Result<TaskInfo> {
        self.running.raw.info()
    }

    /// What the session has done, as of the engine's last step.
    pub fn stats(&self) -> Result<SessionStats> {
        self.session.stats()
    }

    /// The same for any thread at any time, after the task too.
    pub fn stats_reader(&self) -> StatsReader {
        self.session.stats_reader()
    }

    /// Whose session it is.
    pub fn model(&self) -> &Model {
        self.session.model()
    }

    /// The session, to go on with; the answer is part of it. A task that has not ended is cancelled, and its end
    /// waited for: the session has the whole chunks of the prompt and the tokens of the answer that were done.
    /// Events that were not fetched are gone.
    ///
    /// # Panics
    /// In what the engine calls, if the task has not ended: the engine would wait for itself. The task is dropped.
    pub fn into_session(self) -> Session {
        let may_wait = !is_engine() || self.running.raw.has_ended();
        assert!(may_wait, "into_session in a callback, which the engine waits for");
        let Task { mut running, mut session } = self;
        running.raw.cancel();
        running.raw.wait_for_end();
        running.ended = true;
        if let Some(own) = running.own_sampling.take() {
            // A task that ended by itself has set its sampling, and what was before is not called any more.
            if matches!(running.raw.info(), Ok(TaskInfo { state: TaskState::Done, .. })) {
                *session.hooks() = own.into_iter().collect();
            }
        }
        session
    }

    #[cfg(feature = "stream")]
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut place = lock(&self.running.wakes.waker);
        match &mut *place {
            Some(before) => before.clone_from(waker),
            None => *place = Some(waker.clone()),
        }
    }

    #[cfg(feature = "stream")]
    pub(crate) fn has_ended(&self) -> bool {
        self.running.ended
    }
}

/// Events of a task, each waited for: [`Task::events`].
#[derive(Debug)]
#[must_use = "iterators are lazy"]
pub struct Events<'a> {
    task: &'a mut Task,
    ended: bool,
}

impl Iterator for Events<'_> {
    type Item = Result<OwnedEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = self.task.next_event().map(|event| event.map(|event| event.to_owned()));
        self.ended = !matches!(event, Ok(Some(_)));
        event.transpose()
    }
}

impl std::iter::FusedIterator for Events<'_> {}

/// Ends a task from any thread. It keeps the task's memory, but not its work: a task that is dropped is cancelled
/// all the same.
#[derive(Clone, Debug)]
pub struct TaskCanceller(Arc<TaskHandle>);

impl TaskCanceller {
    /// As [`Task::cancel`].
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

/// How far a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskInfo {
    /// What it is at.
    pub state: TaskState,
    /// None while a text is not tokenised yet, or without a prompt.
    pub prompt_tokens: Option<u64>,
    /// Of them: read.
    pub prompt_done: u64,
    /// Written, fetched or not.
    pub answer_tokens: u64,
    /// From submission to admission; None: not admitted yet.
    pub queued: Option<Duration>,
    /// From submission to the first token; None: none yet.
    pub first_token: Option<Duration>,
    /// Of a failed or cancelled task: what kind of failure its end is.
    pub kind: Option<ErrorKind>,
    /// Of a failed or cancelled task: what a call would have said.
    pub message: String,
    /// Of a failed task, as [`Error::native_code`]: errno or a driver's code.
    pub native_code: Option<i64>,
}

/// What a task is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TaskState {
    /// Waits for memory.
    Queued,
    /// Its prompt.
    Reading,
    /// Its answer.
    Writing,
    /// The answer has ended, or has all its tokens.
    Done,
    /// By the host.
    Cancelled,
    /// [`Task::poll`] says why, and [`TaskInfo::kind`].
    Failed,
    /// A state that this crate does not know, of a newer library.
    Other(i32),
}

impl TaskState {
    fn from_raw(state: i32) -> Self {
        match state {
            WI_TASK_QUEUED => Self::Queued,
            WI_TASK_READING => Self::Reading,
            WI_TASK_WRITING => Self::Writing,
            WI_TASK_DONE => Self::Done,
            WI_TASK_CANCELLED => Self::Cancelled,
            WI_TASK_FAILED => Self::Failed,
            other => Self::Other(other),
        }
    }

    /// Whether its session is free.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled | Self::Failed)
    }
}

/// The library's task, and what its callback wakes.
#[derive(Debug)]
struct TaskHandle {
    // In the order in which they go: once the last handle is released nobody is woken any more.
    raw: Handle<wi_task>,
    _wakes: Arc<Wakes>,
}

// SAFETY: the header: any thread may wait, cancel and ask. Polling takes &mut Task.
unsafe impl Send for TaskHandle {}
unsafe impl Sync for TaskHandle {}

impl TaskHandle {
    fn get(&self) -> *mut wi_task {
        self.raw.get()
    }

    fn cancel(&self) {
        // SAFETY: the handle is alive.
        unsafe { wi_task_cancel(self.get()) }
    }

    fn has_ended(&self) -> bool {
        self.info().is_ok_and(|info| info.state.is_end())
    }

    fn wait(&self, timeout_ns: i64) -> Result<bool> {
        let mut ready = 0;
        let timeout_ns = if is_engine() { 0 } else { timeout_ns };
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_task_wait(self.get(), timeout_ns, &mut ready, error) })?;
        if ready == 0 && is_engine() {
            let message = "a callback, which the engine waits for, waits for the engine".into();
            return Err(Error::new(ErrorKind::State, message));
        }
        Ok(ready != 0)
    }

    fn info(&self) -> Result<TaskInfo> {
        let mut info = sized!(wi_task_info {});
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_task_get_info(self.get(), &mut info, error) })?;
        let time = |ns| Some(Duration::from_nanos(ns)).filter(|time| !time.is_zero());
        Ok(TaskInfo {
            state: TaskState::from_raw(info.state),
            prompt_tokens: Some(info.prompt_tokens).filter(|&tokens| tokens > 0),
            prompt_done: info.prompt_done,
            answer_tokens: info.answer_tokens,
            queued: time(info.queued_ns),
            first_token: time(info.first_token_ns),
            kind: Some(info.status).filter(|&status| status != WI_OK).map(ErrorKind::from_raw),
            message: text_of(&info.message),
            native_code: Some(info.native_code).filter(|&code| code != 0),
        })
    }

    /// The next event, which the task holds until the next one.
    fn poll(&self) -> Result<Option<wi_event>> {
        let mut event = sized!(wi_event {});
        let mut count = 0;
        // SAFETY: handle and outputs are valid.
        call(|error| unsafe { wi_task_poll(self.get(), &mut event, 1, &mut count, error) })?;
        Ok((count > 0).then_some(event))
    }

    /// Fetches all events to come. A task without its last event has no memory for it, and has ended by its state. In
    /// a child of fork(2) it has none: its engine is the parent's, and every call on it fails.
    fn wait_for_end(&self) {
        loop {
            match self.poll() {
                Ok(Some(event)) if event.kind != WI_EVENT_TOKEN => return,
                Ok(Some(_)) => continue,
                _ if self.info().is_ok_and(|info| !info.state.is_end()) => drop(self.wait(-1)),
                _ => return,
            }
        }
    }
}

/// A task, and what the engine may still use of the host's until it has ended.
struct Running {
    raw: Arc<TaskHandle>,
    wakes: Arc<Wakes>,
    hooks: Vec<Arc<LogitsHook>>,
    /// The callback of the task's own sampling, if it has any.
    own_sampling: Option<Option<Arc<LogitsHook>>>,
    model: Model,
    ended: bool,
}

impl Running {
    fn poll(&mut self) -> Result<Option<wi_event>> {
        if let Some(panic) = self.wakes.take_panic() {
            self.raw.cancel();
            resume_unwind(panic);
        }
        if self.ended {
            return Ok(None);
        }
        // Before the event: a task that has ended by then tells no more.
        let ended = self.raw.info()?.state.is_end();
        let event = self.raw.poll()?;
        self.ended = match &event {
            Some(event) => event.kind != WI_EVENT_TOKEN,
            None => ended,
        };
        if !self.ended || event.as_ref().is_some_and(|event| event.kind != WI_EVENT_FAILED) {
            return Ok(event);
        }
        let info = self.raw.info()?;
        if info.kind == Some(ErrorKind::Cancelled) {
            // By a callback, as nothing else makes a task fail so: by the newest, if that was its own.
            if let Some(panic) = self.hooks.iter().rev().find_map(|hook| hook.take_panic()) {
                resume_unwind(panic);
            }
        }
        match (info.state, info.kind) {
            (TaskState::Failed, Some(kind)) => {
                Err(Error::of_task(kind, info.native_code.unwrap_or(0), info.message))
            }
            _ => Ok(None),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.raw.cancel();
        if self.hooks.is_empty() && !self.model.borrows() {
            return; // the engine ends it, and uses nothing of ours
        }
        if !is_engine() {
            return self.raw.wait_for_end();
        }
        // Dropped by what the engine called, on the engine's own thread, which would wait for itself.
        let (raw, hooks, model) = (self.raw.clone(), self.hooks.clone(), self.model.clone());
        let kept = Kept(raw, hooks, model);
        let kept = std::mem::ManuallyDrop::new(kept); // without a thread it is never given back
        let _ = thread::Builder::new().spawn(move || {
            kept.0.wait_for_end();
            drop(std::mem::ManuallyDrop::into_inner(kept));
        });
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Running").field("raw", &self.raw).field("ended", &self.ended).finish()
    }
}

struct Kept(Arc<TaskHandle>, #[allow(dead_code)] Vec<Arc<LogitsHook>>, #[allow(dead_code)] Model);

/// Who wants to know of new events.
struct Wakes {
    notify: Option<Box<dyn Fn() + Send + Sync>>,
    /// It is not called again.
    has_panicked: AtomicBool,
    waker: Mutex<Option<Waker>>,
    panic: Mutex<Option<Panic>>,
}

impl Wakes {
    fn take_panic(&self) -> Option<Panic> {
        lock(&self.panic).take()
    }

    /// Whether it went well.
    fn attempt(&self, wake: impl FnOnce()) -> bool {
        let outcome = catch_unwind(AssertUnwindSafe(wake));
        outcome.map_err(|panic| *lock(&self.panic) = Some(panic)).is_ok()
    }

    fn wake(&self) {
        if let Some(notify) = &self.notify {
            if !self.has_panicked.load(Relaxed) && !self.attempt(notify) {
                self.has_panicked.store(true, Relaxed);
            }
        }
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            self.attempt(|| waker.wake());
        }
    }
}

impl fmt::Debug for Wakes {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Wakes")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn notify(user: *mut c_void) {
    let user = user.cast_const().cast::<Wakes>();
    // SAFETY: user is an Arc's, which lives until the last handle of the task is released. What is woken may release
    // that one: this share is ours.
    let wakes = unsafe {
        Arc::increment_strong_count(user);
        Arc::from_raw(user)
    };
    on_engine(|| wakes.wake());
}
