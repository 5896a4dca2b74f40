use std::ffi::{c_char, c_void, CStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::time::Duration;

use waveinfer_sys::*;

use crate::call::{c_string, call, guard, int, is_inside_call, sized, text_of, Handle};
use crate::error::{Error, ErrorKind, Result};

/// Threads, a memory budget and a log; one per program is usual.
///
/// Clones are the same runtime. Its threads, budget and log live until everything that was made from it is gone.
///
/// ```
/// # fn main() -> waveinfer::Result<()> {
/// use waveinfer::{LogLevel, Runtime, RuntimeOptions};
///
/// let runtime = Runtime::new()?; // all defaults
/// let runtime = RuntimeOptions::new()
///     .threads(2)
///     .kv_budget_bytes(1 << 30)
///     .log(LogLevel::Info, |level, message| eprintln!("{level:?}: {message}"))
///     .create()?;
/// assert_eq!(runtime.device_info()?.threads, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Runtime(Handle<wi_runtime>);

// SAFETY: the header: runtimes may be used from any number of threads at once.
unsafe impl Send for Runtime {}
unsafe impl Sync for Runtime {}

impl Runtime {
    /// A runtime with all defaults.
    ///
    /// # Errors
    /// As [`RuntimeOptions::create`].
    pub fn new() -> Result<Self> {
        RuntimeOptions::new().create()
    }

    /// What the runtime runs on.
    pub fn device_info(&self) -> Result<DeviceInfo> {
        let mut info = sized!(wi_device_info {});
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_runtime_device_info(self.raw(), &mut info, error) })?;
        Ok(DeviceInfo::from_raw(&info))
    }

    /// The policies that [`Policy::named`](crate::Policy::named) may name on this runtime's device.
    pub fn policies(&self) -> Result<Vec<PolicyInfo>> {
        // SAFETY: static, NUL-terminated.
        let text = |of| unsafe { CStr::from_ptr(of) }.to_str().unwrap_or_default();
        let policy = |index| {
            let mut info = sized!(wi_policy_info {});
            // SAFETY: handle and output are valid.
            call(|error| unsafe { wi_runtime_policy(self.raw(), index, &mut info, error) })?;
            Ok(PolicyInfo { name: text(info.name), description: text(info.description) })
        };
        (0..self.device_info()?.policies).map(policy).collect()
    }

    /// What the runtime holds at this moment; the numbers are each right, but not taken at one instant.
    pub fn stats(&self) -> Result<RuntimeStats> {
        let mut stats = sized!(wi_runtime_stats {});
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_runtime_get_stats(self.raw(), &mut stats, error) })?;
        Ok(RuntimeStats {
            sessions: stats.sessions,
            kv_budget_bytes: stats.kv_budget_bytes,
            kv_bytes: stats.kv_bytes,
            kv_bytes_peak: stats.kv_bytes_peak,
            scratch_bytes: stats.scratch_bytes,
            prefix_hits: stats.prefix_hits,
            copied_weight_bytes: stats.copied_weight_bytes,
            slow_bytes: stats.slow_bytes,
            frame_bytes: stats.frame_bytes,
            buffer_admissions: stats.buffer_admissions,
            buffer_evictions: stats.buffer_evictions,
            buffer_refusals: stats.buffer_refusals,
            buffer_late: stats.buffer_late,
            slow_read_bytes: stats.slow_read_bytes,
            slow_reads: stats.slow_reads,
            slow_read_time: Duration::from_nanos(stats.slow_read_ns),
            slow_written_bytes: stats.slow_written_bytes,
            pinning_refused: stats.pinning_refused,
            slow_stalls: stats.slow_stalls,
        })
    }

    pub(crate) fn raw(&self) -> *mut wi_runtime {
        self.0.get()
    }
}

type LogFunction = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// How to make a [`Runtime`]. What is not set has its default.
#[derive(Default)]
#[must_use = "options do nothing until create()"]
pub struct RuntimeOptions {
    threads: u32,
    device: Option<String>,
    kv_budget_bytes: u64,
    huge_pages: HugePages,
    bind_threads: BindThreads,
    log: Option<(LogLevel, LogFunction)>,
    nice: u32,
    task_wait: Duration,
    spill_folder: Option<PathBuf>,
    spill_bytes: u64,
    buffer_manager: BufferManager,
}

impl RuntimeOptions {
    /// All defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Threads that work, up to 1024. Default: the physical cores that this process may use, by its CPU set and
    /// the quota of its control groups.
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = threads;
        self
    }

    /// Default: "cpu", the host's own processor. "cuda:N", or "cuda" for the first: a device, see [`devices`].
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Most bytes that keys, values, indexes and tails of all sessions and KV stores together may take; weights
    /// and scratch do not count. Default: 80 % of the memory that this process may use. On a device, of its memory;
    /// default: what is free of it, but for a fifth or, where that is less, 4 GiB, and for what weights and scratch take
    /// then.
    pub fn kv_budget_bytes(mut self, bytes: u64) -> Self {
        self.kv_budget_bytes = bytes;
        self
    }

    /// Whether large pieces of KV and copied weights ask for huge pages.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Whether the runtime's threads are pinned to cores.
    pub fn bind_threads(mut self, bind_threads: BindThreads) -> Self {
        self.bind_threads = bind_threads;
        self
    }

    /// Where messages up to `level` go: one line each. They come from any thread that is inside a call, or from
    /// one of the runtime's own, and several may come at once. The function must not use the object that the
    /// call is on. If it panics in a call, the panic goes on when the call returns; on a thread of the runtime's
    /// own it goes no further. Default: no log.
    pub fn log(mut self, level: LogLevel, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.log = Some((level, Box::new(log)));
        self
    }

    /// Linux: 0 to 19, added to the nice value that the runtime's own threads inherit, so that they stand back
    /// behind a frame loop. The host's threads are left alone. Default: 0.
    pub fn nice(mut self, nice: u32) -> Self {
        self.nice = nice;
        self
    }

    /// How long tasks that write wait at most for prompts that other tasks read, as nearly as one piece of an
    /// operation allows; 1 ms to a minute. Default: 50 ms.
    pub fn task_wait(mut self, wait: Duration) -> Self {
        self.task_wait = wait;
        self
    }

    /// A folder on a local disk (not in memory, as /tmp is on many systems) for keys and values that fast memory
    /// has no room for: a session that outgrows its budget, the runtime's, or its
    /// [`kv_fast_share`](crate::SessionOptions::kv_fast_share) goes on, with the same tokens, and reads from there
    /// what its queries want. The file has no name and is gone with the runtime, however the process ends. Not on a
    /// device, whose slow tier is pinned memory of the host's. Default: there is no slow tier.
    pub fn spill_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.spill_folder = Some(folder.into());
        self
    }

    /// Most bytes in that file. Default: as the disk has room. On a device, in that pinned memory; default: 80 % of the
    /// memory that this process may use.
    pub fn spill_bytes(mut self, bytes: u64) -> Self {
        self.spill_bytes = bytes;
        self
    }

    /// Which clusters of a slow tier make room for others in the fast one.
    pub fn buffer_manager(mut self, buffer_manager: BufferManager) -> Self {
        self.buffer_manager = buffer_manager;
        self
    }

    /// Makes the runtime: reads the machine's topology, starts threads, allocates nothing large.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for what is no name of a device, a spill folder beside one, or a library with another
    /// ABI than this crate's; [`ErrorKind::Device`], with the reason, for a device that is not there or cannot be used;
    /// [`ErrorKind::Io`] for a spill folder in which no file can be made; [`ErrorKind::Argument`] for a value out of
    /// range.
    pub fn create(self) -> Result<Runtime> {
        // SAFETY: takes nothing, cannot fail.
        let abi = unsafe { wi_abi_version() };
        if abi != WI_ABI_VERSION {
            let message = format!("libwaveinfer has ABI {abi}, this program needs {WI_ABI_VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let device = self.device.map(|name| c_string("device", name)).transpose()?;
        let folder = self.spill_folder.as_deref().map(|path| c_path("spill_folder", path));
        let folder = folder.transpose()?;
        let task_wait_ms = match self.task_wait.as_millis() {
            0 if !self.task_wait.is_zero() => 1,
            ms => i32::try_from(ms).unwrap_or(i32::MAX),
        };
        let mut params = sized!(wi_runtime_params {
            threads: int(self.threads),
            device: device.as_ref().map_or(null(), |name| name.as_ptr()),
            kv_budget_bytes: self.kv_budget_bytes,
            huge_pages: self.huge_pages as i32,
            bind_threads: self.bind_threads as i32,
            nice: int(self.nice),
            task_wait_ms: task_wait_ms,
            spill_folder: folder.as_ref().map_or(null(), |path| path.as_ptr()),
            spill_bytes: self.spill_bytes,
            buffer_manager: self.buffer_manager as i32,
        });
        let mut log_user: *mut LogFunction = std::ptr::null_mut();
        if let Some((level, log)) = self.log {
            log_user = Box::into_raw(Box::new(log));
            params.log_level = level as i32;
            params.log = Some(forward);
            params.log_user = log_user.cast();
            params.log_release = Some(release);
        }
        let mut made = false;
        let runtime = Handle::create(|out, error| {
            // SAFETY: params and output are valid; log_user lives until log_release is called.
            let status = unsafe { wi_runtime_create(&params, out, error) };
            made = status == WI_OK;
            if !made && !log_user.is_null() {
                // SAFETY: a create that fails has forgotten it.
                drop(unsafe { Box::from_raw(log_user) });
            }
            status
        });
        runtime.map(Runtime)
    }
}

impl fmt::Debug for RuntimeOptions {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("RuntimeOptions")
            .field("threads", &self.threads)
            .field("device", &self.device)
            .field("kv_budget_bytes", &self.kv_budget_bytes)
            .field("huge_pages", &self.huge_pages)
            .field("bind_threads", &self.bind_threads)
            .field("log", &self.log.as_ref().map(|(level, _)| level))
            .field("nice", &self.nice)
            .field("task_wait", &self.task_wait)
            .field("spill_folder", &self.spill_folder)
            .field("spill_bytes", &self.spill_bytes)
            .field("buffer_manager", &self.buffer_manager)
            .finish()
    }
}

unsafe extern "C" fn forward(user: *mut c_void, level: i32, message: *const c_char) {
    // SAFETY: user is the function given to create, alive until release; message is NUL-terminated.
    let (log, message) = unsafe { (&*user.cast::<LogFunction>(), CStr::from_ptr(message)) };
    let level = match level {
        WI_LOG_ERROR => LogLevel::Error,
        WI_LOG_WARNING => LogLevel::Warning,
        WI_LOG_INFO => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    let say = || log(level, &message.to_string_lossy());
    if is_inside_call() {
        guard(say);
    } else if let Err(panic) = catch_unwind(AssertUnwindSafe(say)) {
        std::mem::forget(panic); // the thread goes on, and dropping it might panic again
    }
}

unsafe extern "C" fn release(user: *mut c_void) {
    // SAFETY: made by Box::into_raw, and nothing uses it any more.
    let log = unsafe { Box::from_raw(user.cast::<LogFunction>()) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(log))) {
        std::mem::forget(panic);
    }
}

/// A path as the library takes it.
pub(crate) fn c_path(name: &str, path: &Path) -> Result<std::ffi::CString> {
    c_string(name, path.as_os_str().as_bytes())
}

/// How much a log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum LogLevel {
    /// What has failed, and no call could say so.
    Error = WI_LOG_ERROR,
    /// What goes on, but not as it should: threads or memory that the system refused. The default.
    Warning = WI_LOG_WARNING,
    /// What the runtime found and chose.
    Info = WI_LOG_INFO,
    /// What it does, for whoever looks for a fault.
    Debug = WI_LOG_DEBUG,
}

/// Whether the system is asked for huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum HugePages {
    /// For large pieces of KV and copied weights.
    #[default]
    Auto = WI_HUGE_PAGES_AUTO,
    /// For nothing.
    Off = WI_HUGE_PAGES_OFF,
}

/// Whether the runtime's threads stay on their cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum BindThreads {
    /// On machines of several NUMA nodes.
    #[default]
    Auto = WI_BIND_AUTO,
    /// Nowhere.
    Off = WI_BIND_OFF,
}

/// Which clusters of a slow tier make room for others in the fast one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum BufferManager {
    /// [`Lru`](Self::Lru).
    #[default]
    Auto = WI_BUFFER_AUTO,
    /// The least recently used exactly (RetroInfer, section 4.3).
    Lru = WI_BUFFER_LRU,
    /// By age in 64 steps, as a device computes it (SPIN, section 5.3).
    Bucketed = WI_BUFFER_BUCKETED,
}

/// What a runtime runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Threads of the host's that the runtime works with.
    pub threads: i32,
    /// "cpu", "cuda:0".
    pub name: String,
    /// The processor's or the device's own name.
    pub description: String,
    /// Instruction set that the kernels chose, e.g. "AVX3", "sm_90".
    pub simd: String,
    /// Physical cores that this process may use; a device's multiprocessors.
    pub cores: i32,
    /// NUMA nodes with at least one of them.
    pub numa_nodes: i32,
    /// Bytes that this process may use: the smaller of the machine's and its control groups'.
    pub memory_bytes: u64,
    /// Level 2 cache, per core.
    pub l2_bytes: Option<u64>,
    /// Level 3 cache, per group of cores.
    pub l3_bytes: Option<u64>,
    /// Policies that there are on it: [`Runtime::policies`].
    pub policies: i32,
    /// Why no runtime can be made on it, in words; None: one can.
    pub unusable: Option<String>,
}

impl DeviceInfo {
    fn from_raw(info: &wi_device_info) -> Self {
        DeviceInfo {
            threads: info.threads,
            name: text_of(&info.name),
            description: text_of(&info.description),
            simd: text_of(&info.simd),
            cores: info.cores,
            numa_nodes: info.numa_nodes,
            memory_bytes: info.memory_bytes,
            l2_bytes: Some(info.l2_bytes).filter(|&bytes| bytes > 0),
            l3_bytes: Some(info.l3_bytes).filter(|&bytes| bytes > 0),
            policies: info.policies,
            unusable: (info.usable == 0).then(|| text_of(&info.reason)),
        }
    }
}

/// What a runtime could be made on: the host's own processor first, then what is beside it; where there is nothing,
/// one that says why.
///
/// ```
/// # fn main() -> waveinfer::Result<()> {
/// for device in waveinfer::devices()? {
///     match device.unusable {
///         None => println!("{}: {}", device.name, device.description),
///         Some(reason) => println!("{}: {reason}", device.name),
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// None of its own.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let mut count = 0;
    // SAFETY: outputs are valid, here and below.
    call(|error| unsafe { wi_device_count(&mut count, error) })?;
    let device = |index| {
        let mut info = sized!(wi_device_info {});
        call(|error| unsafe { wi_device_get_info(index, &mut info, error) })?;
        Ok(DeviceInfo::from_raw(&info))
    };
    (0..count).map(device).collect()
}

/// A way of indexing and selecting, to be named in [`Policy::named`](crate::Policy::named).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyInfo {
    /// As [`Policy::named`](crate::Policy::named) takes it.
    pub name: &'static str,
    /// One line in English.
    pub description: &'static str,
}

/// What a runtime holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeStats {
    /// Sessions alive now.
    pub sessions: i32,
    /// The budget in force.
    pub kv_budget_bytes: u64,
    /// KV, index and tail bytes now; what sessions share counts once.
    pub kv_bytes: u64,
    /// Most since creation.
    pub kv_bytes_peak: u64,
    /// Workspaces of prefill and decode, kept for the next step.
    pub scratch_bytes: u64,
    /// Segments taken over from another session instead of being computed.
    pub prefix_hits: u64,
    /// Of models that were opened with copied weights and live.
    pub copied_weight_bytes: u64,
    /// In the slow tier's file, or pinned, now; what lies in saved sessions is not counted. This and what follows is 0
    /// without a slow tier.
    pub slow_bytes: u64,
    /// Of `kv_bytes`: frames for what queries want of them.
    pub frame_bytes: u64,
    /// Partitions that came into frames to stay; since creation, as all below.
    pub buffer_admissions: u64,
    /// Partitions that made room.
    pub buffer_evictions: u64,
    /// Partitions that were read and found no free frame.
    pub buffer_refusals: u64,
    /// Partitions that two steps brought in at once.
    pub buffer_late: u64,
    /// That the disk was asked for.
    pub slow_read_bytes: u64,
    /// Reads that the disk was asked for.
    pub slow_reads: u64,
    /// That calls waited for them: none where they worked meanwhile.
    pub slow_read_time: Duration,
    /// Bytes written to the slow tier.
    pub slow_written_bytes: u64,
    /// Of a device: how often the system refused to pin host memory.
    pub pinning_refused: u64,
    /// Times that a call waited for the disk.
    pub slow_stalls: u64,
}
