/* waveinfer.h: the whole ABI of libwaveinfer 0.2, and its manual.
 * SPDX-License-Identifier: Apache-2.0
 *
 * libwaveinfer runs long-context language models inside another program. A session's KV cache is a vector
 * store: what is old is sealed into segments with an index, a decode step looks up the few clusters of keys
 * that matter, reads those, and estimates the rest (RetroInfer: A Vector-Storage Approach for Scalable
 * Long-Context LLM Inference, section 4). A host opens a model, makes a session, and reads and writes tokens:
 *
 *     wi_error error = {sizeof error};
 *     wi_runtime* runtime; wi_model* model; wi_session* session;
 *     wi_event event = {sizeof event};
 *     if (wi_runtime_create(NULL, &runtime, &error)) return fail(&error);
 *     if (wi_model_open(runtime, "model.gguf", NULL, NULL, &model, &error)) return fail(&error);
 *     if (wi_session_create(model, NULL, &session, &error)) return fail(&error);
 *     if (wi_session_append_text(session, text, strlen(text), WI_TOKENIZE_ADD_BOS, NULL, NULL, &error))
 *       return fail(&error);
 *     for (int i = 0; i < 64 && event.kind == WI_EVENT_TOKEN; i++) {
 *       if (wi_session_decode(session, NULL, &event, &error)) return fail(&error);
 *       fwrite(event.text, 1, event.text_length, stdout);
 *     }
 *     wi_session_release(session); wi_model_release(model); wi_runtime_release(runtime);
 *
 * The general rules hold for every call; a call's own text says only what is particular to it. Everything
 * here is since version 0.2 or older; versions before it had another ABI.
 *
 * Structs. The caller sets struct_size, the first field, to sizeof the struct it was compiled with, and
 *   zeroes the rest: zero means default in every field. Structs only ever grow at the end. A struct
 *   smaller than the library's is an older caller's, its missing fields are zero; a larger one is a newer
 *   caller's and is accepted while the bytes that this library does not know are zero, else it is
 *   WI_E_ARGUMENT naming the offset of the first such byte. A struct_size below 4 or above 4096 is
 *   WI_E_ARGUMENT. Where a call takes params, NULL stands for all defaults unless it says otherwise;
 *   params are copied. Result structs are filled up to their struct_size, never beyond, and struct_size is
 *   kept; bytes of a newer caller's result struct that this library does not know are zeroed. In an array
 *   of structs all elements must have the same struct_size, which is also the distance from one to the
 *   next. Fields named reserved must be zero. wi_text, wi_logit_bias and wi_token_logprob are plain values
 *   without struct_size, which never grow.
 * Errors. Calls return a wi_status, WI_OK or what went wrong, and fill a wi_error if one is given. After a
 *   failure outputs and objects are as they were before the call, unless the call says otherwise, and the
 *   next call works. No exception, abort or exit crosses the boundary. There is no thread-local last
 *   error, so it does not matter on which thread a host looks at one. Any call that can fail may return
 *   WI_E_ARGUMENT (a NULL handle or output, a value out of range; the message names it and its value),
 *   WI_E_MEMORY or WI_E_INTERNAL; one of a runtime on a device WI_E_DEVICE or WI_E_DEVICE_LOST, too; a call's own
 *   text lists the rest.
 * Ownership. Handles are reference-counted: create, open, fork and load return a handle with one reference
 *   that is the caller's, retain adds one and returns its argument, release takes one away. retain and
 *   release accept NULL and may be called from any thread. What is made from a handle keeps it alive by
 *   itself: a runtime, a model and its sessions may be released in any order. Nobody may be inside a call
 *   with a handle whose last reference is released. What a session or a KV store alone has is given back to the system
 *   on the thread that releases its last reference, but for pieces of less than eight pages, in about 15 ms for each GB
 *   of huge pages and 120 ms of small ones: a thread that draws frames should leave it to another one. Memory passed in
 *   is the caller's and is not used after the call returns; memory passed out says whose it is.
 * Threads. Runtimes, models and cancel tokens may be used from any number of threads at once. A session
 *   and a KV store are used by one thread at a time, not always the same one: a call that finds another
 *   one inside returns WI_E_BUSY and changes nothing. Statistics may be read from any thread at any time.
 *   Work is spread over the calling thread and the runtime's own, which end with it; the host's others are
 *   left alone. Whichever call starts them, the runtime's own have the CPU set, the scheduling policy and, but
 *   for what wi_runtime_params.nice adds, the nice value that the thread which creates the runtime has then, as
 *   far as the system permits: it may refuse to let one step forward that a nicer thread's call starts.
 *   What reading a model's files took is freed by a thread that ends by itself, or with the library.
 *   Different sessions of one runtime may run at once and share its threads. A thread that the system refuses
 *   is one less, with a warning in the log; without the one for tasks wi_task_submit is WI_E_MEMORY.
 *   wi_device_info says how many work.
 * The host's surroundings. Whatever rounding mode, flushing of denormals or trap a calling thread has set, a
 *   call computes in C's default floating-point environment, callbacks included, and leaves the thread's as
 *   it was. No locale reaches what files mean or messages say. Nothing is written to the standard streams.
 * fork(). In the child, handles that the parent made are dead: calls with them return WI_E_STATE, retain and
 *   release do nothing, and their memory is the child's until it ends or calls exec. It may make a runtime of
 *   its own and use that. The parent goes on as before.
 * exit(). It may come while calls and tasks of other threads run, as when main() returns: they go on until the
 *   process ends. A host's static objects may release handles then.
 * Signals. The library handles none, and its own threads block them. A call that makes a thread keeps signals
 *   from the calling one meanwhile, but those that its own instructions raise; its mask is then what it was.
 *   Handlers run on the thread's own stack, or on the one that the host gave it for signals.
 * Callbacks run on the calling thread, during the call they are given to, and are forgotten with it; a logits
 *   callback during the calls that sample, or on the engine's thread in a task; only the log's may come from
 *   elsewhere, and until its log_release. They must not throw or unwind, and must not use the object that the
 *   call is on, except for its statistics.
 * Cancellation. A wi_cancel that fires makes the calls it was given to return WI_E_CANCELLED: within 100 ms in a
 *   prefill, within one layer in a decode step, or once a disk has ended the read or write that it is at. One that has
 *   fired before ends a call at once, whatever there is to do. The object is as it was before it. NULL: never cancelled.
 * Text is a pointer and a length in bytes, UTF-8 by intent; bytes that are none are taken as they are.
 *   What comes back as an event never splits a code point. Paths and names are NUL-terminated.
 * Sizes. A call that fills an array takes a capacity in elements and sets *count_out (or *length_out) to
 *   what is needed. To ask for that, pass NULL and capacity 0: WI_OK. If a capacity is too small the call
 *   returns WI_E_ARGUMENT, sets the count all the same and writes nothing else.
 * Units. _bytes are bytes, _ns nanoseconds, _tokens tokens. Arrays are dense and row-major, shapes are
 *   given from the slowest to the fastest index: (tokens, vocab).
 */
#ifndef WAVEINFER_H
#define WAVEINFER_H

#include <stddef.h>
#include <stdint.h>

/* Before every function. On Windows functions come from the DLL, unless the host defines WI_STATIC because it links
 * the library itself; WI_BUILD is for building the library. */
#if defined(_WIN32) && defined(WI_BUILD)
#define WI_API __declspec(dllexport)
#elif defined(_WIN32) && !defined(WI_STATIC)
#define WI_API __declspec(dllimport)
#elif defined(__GNUC__) && !defined(_WIN32)
#define WI_API __attribute__((visibility("default")))
#else
#define WI_API
#endif

/* Version of this header. Within one ABI version programs go on working without a rebuild. */
#define WI_ABI_VERSION 2u
#define WI_VERSION "0.2.0"

#ifdef __cplusplus
extern "C" {
#endif

/* ============================================ Status ============================================ */

typedef int32_t wi_status;
enum wi_status_code {
  WI_OK = 0,
  WI_E_ARGUMENT = 1,     /* an argument is wrong; the message names it and its value */
  WI_E_FORMAT = 2,       /* a file is broken; the message names the field and the byte offset */
  WI_E_UNSUPPORTED = 3,  /* well-formed, but not something this build can do; the message names it */
  WI_E_IO = 4,           /* the system refused a file operation; native_code is errno */
  WI_E_MEMORY = 5,       /* the system refused memory */
  WI_E_BUDGET = 6,       /* a byte budget of the runtime or the session would be exceeded; where there is a
                            slow tier, by what must be in fast memory, or the slow tier is full too: of
                            spill_bytes nothing is left. If its disk is full, that is WI_E_IO, with ENOSPC */
  WI_E_CANCELLED = 7,    /* the cancel token fired, or a callback ended the call */
  WI_E_BUSY = 8,         /* another thread is inside this session or KV store */
  WI_E_STATE = 9,        /* the call does not fit the object's state, e.g. decode of an empty session */
  WI_E_MISMATCH = 10,    /* a saved session of another model or of other parameters */
  WI_E_DEVICE = 11,      /* a device call failed; native_code is the driver's */
  WI_E_DEVICE_LOST = 12, /* a sticky device fault: this runtime is unusable, the process is not */
  WI_E_INTERNAL = 13     /* a bug in this library; please report the message */
};

/* What a failed call says. Allocated by the caller, who sets struct_size; untouched by a call that succeeds.
 * One with struct_size 0 stays untouched always. Every `error` parameter may be NULL. */
typedef struct wi_error {
  uint32_t struct_size;
  wi_status code;
  int64_t native_code; /* errno or a driver's code; 0: none */
  char message[512];   /* UTF-8, NUL-terminated, cut at a code point */
} wi_error;

/* ============================================ Handles ============================================ */

/* Each lives until its last reference is released and everything that was made from it is gone: a runtime's
 * threads, budget and log outlast the handle while a model, session or KV store of it lives. A cancel token is
 * kept by nothing else: it must live as long as the calls that it was given to. */
typedef struct wi_runtime wi_runtime; /* threads, memory budget, log; one per program is usual */
typedef struct wi_model wi_model;     /* weights, tokenizer, hyper-parameters; immutable */
typedef struct wi_session wi_session; /* one token sequence with its KV cache and its sampler */
typedef struct wi_cancel wi_cancel;   /* a flag that ends long calls */
typedef struct wi_task wi_task;       /* a prompt and its answer, worked on beside the host's threads */
typedef struct wi_kv wi_kv;           /* a KV cache alone, for hosts with model code of their own */

/* ============================================ Callbacks ============================================ */

/* message: UTF-8, NUL-terminated, one line, valid during the callback. Comes from any thread that is inside a
 * call or from one of the runtime's own, and may come from several at once. */
typedef void (*wi_log_callback)(void* user, int32_t level, const char* message);

/* Takes back what the host gave with a callback: nothing uses user any more. Must not call the library.
 * Since 0.2. */
typedef void (*wi_release_callback)(void* user);

/* done never falls and ends at total. Units are those of the call it is given to. Returns 0 to go on;
 * anything else ends the call with WI_E_CANCELLED, as a cancel token does. */
typedef int32_t (*wi_progress_callback)(void* user, uint64_t done, uint64_t total);

/* Changes the logits that a token is about to be sampled from, in place: (vocab) f32, after logit_bias,
 * before penalty and temperature; -INFINITY forbids a token. The model's own logits, those that
 * wi_session_logits gives and log-probabilities come from, stay as they are. Other than 0 ends the call with
 * WI_E_CANCELLED. It may be called again for the same token if the call fails after it; what was taken is
 * what events say. A task whose callback ends a step so is WI_TASK_FAILED with that status, and is not asked
 * again. Since 0.2. */
typedef int32_t (*wi_logits_callback)(void* user, float* logits, uint64_t vocab);

enum wi_log_level {
  WI_LOG_NONE = 0, /* as a parameter: the default, WI_LOG_WARNING */
  WI_LOG_ERROR = 1,
  WI_LOG_WARNING = 2,
  WI_LOG_INFO = 3,
  WI_LOG_DEBUG = 4
};

/* ============================================ Version ============================================ */

/* The library's WI_ABI_VERSION; a host built with another one must not go on. Cannot fail. */
WI_API uint32_t wi_abi_version(void);

/* The library's version, "major.minor.patch"; static. Cannot fail. */
WI_API const char* wi_version(void);

/* A status by name without its prefix, "BUDGET" for WI_E_BUDGET, "UNKNOWN" for what is none; static. */
WI_API const char* wi_status_name(wi_status status);

/* ============================================ Runtime ============================================ */

enum wi_huge_pages { WI_HUGE_PAGES_AUTO = 0, WI_HUGE_PAGES_OFF = 1 };
enum wi_bind_threads { WI_BIND_AUTO = 0, WI_BIND_OFF = 1 };
/* Which clusters of a slow tier make room for others in the fast one: the least recently used exactly
 * (RetroInfer, section 4.3), or by age in 64 steps, as a device always does (SPIN, section 5.3). AUTO: LRU.
 * Since 0.2 */
enum wi_buffer_manager { WI_BUFFER_AUTO = 0, WI_BUFFER_LRU = 1, WI_BUFFER_BUCKETED = 2 };

typedef struct wi_runtime_params {
  uint32_t struct_size;
  /* Threads that work, 0 to 1024. 0: the physical cores that the calling thread may use, by its CPU set and the quota
   * of the process's control groups. The runtime's own threads inherit that set. */
  int32_t threads;
  /* NUL-terminated. NULL or "cpu": the host's own processor. "cuda:N", or "cuda" for the first: a device of
   * libwaveinfer_cuda.so, which is looked for beside this library, then where the system looks for libraries.
   * wi_device_get_info says whether it can be used. On a device weights, indexes and recent tokens are in its memory,
   * and as much of the other keys and values as kv_budget_bytes, which counts that memory, has room for (0: what is
   * free of it, but for a fifth or, where that is less, 4 GiB, and for what models' weights and scratch take then); the
   * rest is in pinned memory of the host's, on the device's own NUMA node, which is the slow tier of its sessions
   * (kv_fast_share, spill_bytes, statistics): the device reads it there, and has copies of what "wave" looks up again
   * and again in frames of its own memory. The device is used in its primary context; the context that is current to a
   * host's thread is so again when a call returns.
   * Policies are "wave", without target_mass, and "full", not "streaming" and "blocks"; there is no spill_folder and no
   * wi_kv yet. Weights are f32, f16, bf16, q8_0, q4_0, q4_K, q5_K or q6_K, of models with a head_dim of at most 256,
   * hidden and ffn that are multiples of 8, and at most 64 query heads for each KV head. What else is asked for is
   * WI_E_UNSUPPORTED, by name. */
  const char* device;
  /* Most bytes that KV, indexes and tails of all sessions and KV stores together may take; weights and
   * scratch do not count. 0: 80 % of the memory this process may use; of a device, see there. */
  uint64_t kv_budget_bytes;
  int32_t huge_pages;   /* WI_HUGE_PAGES_*. AUTO: ask the system for them, for large pieces of KV and copied
                           weights */
  int32_t bind_threads; /* WI_BIND_*. AUTO: pin the runtime's threads to cores on machines of several NUMA
                           nodes, and a thread of the host's while it is inside a call, callbacks included */
  int32_t log_level;    /* WI_LOG_*: nothing above it is logged. 0: WI_LOG_WARNING */
  /* Linux: 0 to 19, added to the nice value that the runtime's own threads inherit from the one which creates
   * it, so that they stand back behind a frame loop. The host's threads are left alone: a thread inside a
   * call works too, at the priority that the host gave it. Since 0.2 */
  int32_t nice;
  wi_log_callback log; /* NULL: no log */
  void* log_user;      /* first argument of log; must live until log_release is called */
  /* NULL, or called once, with log_user, when nothing can log any more: on the thread that releases the last
   * of the runtime and all that was made of it, before that release returns; where a task had not ended by
   * then, on the engine's thread, within a step of it. A wi_runtime_create that fails does not call it. Since
   * 0.2 */
  wi_release_callback log_release;
  /* Tasks that write wait at most so many milliseconds for prompts that other tasks read, as nearly as one
   * piece of an operation allows; 1 to 60000. 0: 50 */
  int32_t task_wait_ms;
  int32_t reserved_1;
  /* NUL-terminated; NULL: there is no slow tier. A folder on a local disk (not in memory, as /tmp is on many
   * systems), for keys and values that fast memory has no room for: a session that outgrows its budget, the
   * runtime's, or its kv_fast_share goes on, with the same tokens, and reads from there what its queries want.
   * What the runtime's budget leaves for sealed keys and values its sessions divide in proportion to what each has
   * of them; one that needs room takes it from those that have more than their part, idle ones too, and may wait
   * for steps of theirs to end, some seconds at most. What the slow tier does not take, as it is full or its disk
   * fails, stays in memory, and the call fails only where memory has no room for it, or the session's kv_fast_share
   * none. KV stores (wi_kv) take part as sessions do.
   * The file has no name and is gone with the runtime, however the process ends. Layers with a sliding window stay in
   * memory. Sessions that are loaded by path stay in their file (see wi_session_load). Since 0.2 */
  const char* spill_folder;
  /* At most, in that file; 0: as the disk has room. On a device, in pinned memory, which the next segment of those that
   * leave may have in advance; 0: 80 % of the memory this process may use. Since 0.2 */
  uint64_t spill_bytes;
  int32_t buffer_manager; /* WI_BUFFER_*. Since 0.2 */
  int32_t reserved_2;
} wi_runtime_params;

typedef struct wi_device_info {
  uint32_t struct_size;
  int32_t threads;       /* of the host's, that the runtime works with */
  char name[64];         /* "cpu", "cuda:0" */
  char description[128]; /* the processor's or the device's own name */
  char simd[32];         /* instruction set that the kernels chose, e.g. "AVX3", "sm_90" */
  int32_t cores;         /* physical cores this process may use; a device's multiprocessors */
  int32_t numa_nodes;    /* with at least one of them */
  uint64_t memory_bytes; /* this process may use: the smaller of the machine's and its control groups' */
  uint64_t l2_bytes;     /* per core; 0: unknown */
  uint64_t l3_bytes;     /* per group of cores; 0: unknown */
  int32_t policies;      /* that there are on it: wi_runtime_policy tells which. Since 0.2 */
  /* 1: a runtime can be made on it. 0: reason says why not, in words for whoever looks after the machine: no
   * driver, one that is too old, no plugin. Since 0.2, both */
  int32_t usable;
  char reason[192]; /* NUL-terminated; empty if it can be used */
} wi_device_info;

/* A way of indexing and selecting, to be named in wi_policy_params. Since 0.2. */
typedef struct wi_policy_info {
  uint32_t struct_size;
  int32_t reserved;
  const char* name;        /* NUL-terminated, static */
  const char* description; /* one line in English, NUL-terminated, static */
} wi_policy_info;

typedef struct wi_runtime_stats {
  uint32_t struct_size;
  int32_t sessions;         /* alive now */
  uint64_t kv_budget_bytes; /* in force */
  uint64_t kv_bytes;        /* KV, index and tail bytes now; what sessions share counts once */
  uint64_t kv_bytes_peak;   /* most since creation */
  uint64_t scratch_bytes; /* workspaces of calls; kept are as many as threads; of a device, and pinned, too */
  uint64_t prefix_hits;   /* segments taken over from another session instead of being computed */
  uint64_t copied_weight_bytes; /* of models that were opened with WI_WEIGHTS_COPIED and live */
  /* Of the slow tier, 0 without one; since 0.2: */
  uint64_t slow_bytes;        /* in spill_folder's file, or pinned, now; saved sessions' files do not count */
  uint64_t frame_bytes;       /* of kv_bytes: frames for what queries want of them */
  uint64_t buffer_admissions; /* partitions that came into frames to stay; since creation, as all below */
  uint64_t buffer_evictions;  /* partitions that made room */
  uint64_t buffer_refusals;   /* partitions that were read and found no free frame */
  uint64_t buffer_late;       /* partitions that two calls brought in at once */
  uint64_t slow_read_bytes;   /* that the disk was asked for */
  uint64_t slow_reads;        /* reads that the disk was asked for */
  uint64_t slow_read_ns;      /* that calls waited for them: none where they worked meanwhile */
  uint64_t slow_written_bytes;
  /* Of a device: how often the system refused to pin host memory, of which the first is a warning in the log. Copies
   * to and from the device go on through memory that is not pinned, and steps wait for them; the slow tier does where
   * the device reads such memory (cudaDevAttrPageableMemoryAccess), and is otherwise at its end: WI_E_MEMORY, the
   * session being as it was. Since 0.2 */
  uint64_t pinning_refused;
  uint64_t slow_stalls; /* times that a call waited for the disk */
} wi_runtime_stats;

/* How many devices there are to be told about: the host's own processor, and those that are beside it; where there
 * are none, one that says why. Opens libwaveinfer_cuda.so, if it is there.
 *   count_out  out: at least 2
 * Errors: none of its own. Any thread. Since 0.2. */
WI_API wi_status wi_device_count(int32_t* count_out, wi_error* error);

/* One of them, without a runtime; threads is what one would work with by default. What a device has free only a context
 * of CUDA's on it says: where the process has none there, one is made and given back, which takes some hundred
 * milliseconds and, as long as the call, some hundred megabytes of the device's memory.
 *   index     in [0, count); 0 is the host's own processor
 *   info_out  out
 * Errors: none of its own. Any thread. Since 0.2. */
WI_API wi_status wi_device_get_info(int32_t index, wi_device_info* info_out, wi_error* error);

/* Makes a runtime: reads the machine's topology, starts threads, allocates nothing large.
 *   params       NULL: all defaults
 *   runtime_out  out: a new handle
 * Errors: WI_E_UNSUPPORTED for what is no name of a device, and for a spill_folder beside one; WI_E_DEVICE, with the
 * reason, for one that is not there or cannot be used; WI_E_IO for a spill_folder in which no file can be made,
 * or on whose disk a block cannot be written or read; a full one is no error before it is needed. Thread-safe. */
WI_API wi_status wi_runtime_create(const wi_runtime_params* params, wi_runtime** runtime_out,
                                   wi_error* error);
WI_API wi_runtime* wi_runtime_retain(wi_runtime* runtime);
WI_API void wi_runtime_release(wi_runtime* runtime);

/* What the runtime runs on. Any thread. */
WI_API wi_status wi_runtime_device_info(wi_runtime* runtime, wi_device_info* info_out, wi_error* error);

/* The policies that wi_policy_params may name on this runtime's device.
 *   index     in [0, wi_device_info.policies); beyond that WI_E_ARGUMENT
 *   info_out  out: its strings are static
 * Any thread. Since 0.2. */
WI_API wi_status wi_runtime_policy(wi_runtime* runtime, int32_t index, wi_policy_info* info_out,
                                   wi_error* error);

/* What it holds at this moment. Any thread; the numbers are each right, but not taken at one instant. */
WI_API wi_status wi_runtime_get_stats(wi_runtime* runtime, wi_runtime_stats* stats_out, wi_error* error);

/* ============================================ Cancel ============================================ */

/* Makes a token that has not fired. One token may be given to many calls. Thread-safe. */
WI_API wi_status wi_cancel_create(wi_cancel** cancel_out, wi_error* error);
WI_API wi_cancel* wi_cancel_retain(wi_cancel* cancel);
WI_API void wi_cancel_release(wi_cancel* cancel);

/* Fires: calls that were given the token, now or later, end with WI_E_CANCELLED. NULL is ignored. Any thread,
 * and from a signal handler. */
WI_API void wi_cancel_trigger(wi_cancel* cancel);

/* Makes a token usable again, for calls that begin afterwards: those that were running when it fired are cancelled
 * all the same. NULL is ignored. Any thread. */
WI_API void wi_cancel_reset(wi_cancel* cancel);

/* ============================================ Streams ============================================ */

/* Where a call reads from instead of a file; since 0.2. read copies `count` bytes from `offset` on to `to`,
 * all of them, and returns 0, or another value, with which the call fails as WI_E_IO (it is the native_code).
 * Called on the calling thread, during the call only; offset + count is never more than bytes. */
typedef struct wi_reader {
  uint32_t struct_size;
  int32_t reserved;
  uint64_t bytes; /* in all */
  int32_t (*read)(void* user, uint64_t offset, void* to, uint64_t count);
  void* user; /* first argument of read */
} wi_reader;

/* Where a call writes to instead of a file; since 0.2. write takes the next `count` bytes, all of them, and
 * returns 0, or another value, with which the call fails as WI_E_IO (it is the native_code). Called on the
 * calling thread, during the call only. After a failure what was written is of no use. */
typedef struct wi_writer {
  uint32_t struct_size;
  int32_t reserved;
  int32_t (*write)(void* user, const void* from, uint64_t count);
  void* user; /* first argument of write */
} wi_writer;

/* ============================================ Model ============================================ */

/* How prefill multiplies by weights, keys and values narrower than f32. FAST: in bf16 with f32 sums where that
 * is faster (AMX, AMD's AVX512_BF16, ARM's BF16), as inference servers do; logits are off by 1 or 2 % of their
 * spread. Elsewhere as F32, but by quantised weights as in decoding: in integers that lose no more than f32
 * does. F32: everything in f32; where FAST is in bf16 half as fast, a quarter with AMX. HIGH: where there is
 * AMX, each number as the sum of two bf16 numbers, 16 significant bits, which moves logits by less than
 * storing keys and values in f16 does; half as fast as FAST, two thirds with weights in bf16. Elsewhere it is
 * F32. At these three decoding is always in f32, and f32 weights are too.
 * INT8, since 0.2: by quantised weights, decoding as well as prefill multiplies in integers, each 32 numbers of
 * a row rounded to 8 bits under a scale of their own, much as llama.cpp does on processors; logits are off by
 * 1 % of their spread. A step of 16 sessions of 16K tokens takes 78 % (q4_K) to 88 % (q8_0) of FAST's time (VNNI), its
 * products by weights 66 to 79 %; on AVX2 those by q4_K and q6_K take two thirds. Prompts take 80 to 85 % (VNNI) or
 * 70 to 75 % (AVX2). By q8_0 on AVX2 products and prompts take a little more than FAST's time. It uses no tiles of
 * AMX: there steps of many sessions take FAST's time, prompts twice as much. A row's products are the same bits in
 * prefill, in decoding and in any batch. By weights that are not quantised, and in attention, as FAST. */
enum wi_precision {
  WI_PRECISION_FAST = 0,
  WI_PRECISION_F32 = 1,
  WI_PRECISION_HIGH = 2,
  WI_PRECISION_INT8 = 3
};

/* Where weights lie while the model lives. MAPPED: in the file, which must not change so long: one that is
 * cut short or whose disk goes away ends the process with SIGBUS. Opening reads next to nothing, processes
 * that map the same file share its memory, and the system takes it back under pressure. COPIED: in memory of
 * this process alone, on huge pages where allowed, until the model and its sessions are released. Opening
 * reads the whole file, on the calling thread, and closes it; what becomes of it then does not matter, and
 * decode steps that wait for weights take 5 to 10 % less. Where vectors are of 512 bits, weights of q8_0, q4_0,
 * q4_1, q5_0 and q5_1 are kept in the order in which they are multiplied: a step of 16 sessions of 16K tokens takes
 * 5 to 8 % less with q8_0, its products by weights 13 to 16 %. Neither counts against kv_budget_bytes. */
enum wi_weights { WI_WEIGHTS_MAPPED = 0, WI_WEIGHTS_COPIED = 1 };

typedef struct wi_model_params {
  uint32_t struct_size;
  int32_t precision; /* WI_PRECISION_*; of all sessions of this model */
  /* NULL, or: bytes of the weights looked at or copied, bytes in all, which is 0 until the files' tables are
   * read. At least every 250 ms. */
  wi_progress_callback progress;
  void* progress_user; /* its first argument */
  int32_t weights;     /* WI_WEIGHTS_* */
  int32_t reserved;
} wi_model_params;

typedef struct wi_model_info {
  uint32_t struct_size;
  int32_t layers;
  int32_t hidden;      /* width of the residual stream */
  int32_t query_heads; /* a multiple of kv_heads */
  int32_t kv_heads;
  int32_t head_dim;
  int32_t ffn;       /* width of the feed-forward block */
  int32_t vocab;     /* token ids are in [0, vocab) */
  int32_t bos_token; /* -1: none */
  int32_t eos_token; /* -1: none; wi_event.kind knows every token that ends an answer */
  /* The model was made for at most so many tokens; enforced where its file asks for something not implemented beyond
   * them (wi_model_open) */
  uint64_t max_positions;
  uint64_t parameters;         /* weights, counted */
  uint64_t weight_bytes;       /* as stored in the file */
  uint64_t kv_bytes_per_token; /* all layers, with f16 KV, without index */
  char architecture[32];       /* "llama", "qwen2" or "qwen3" */
  char name[64];               /* as the file calls it; may be empty */
  char weight_type[16];        /* of most weight bytes: "f16", "q8_0", "q4_k" and so on */
  char chat_family[32];        /* "template" if the file has a chat template, empty if it has none */
} wi_model_info;

/* What a token is. */
enum wi_token_flag {
  WI_TOKEN_CONTROL = 1, /* <|end|> and the like: written by detokenize only if asked for */
  WI_TOKEN_END = 2,     /* ends an answer: decode gives it as WI_EVENT_END */
  WI_TOKEN_BYTE = 4,    /* stands for one byte, which is part of a code point or of no UTF-8 */
  WI_TOKEN_UNUSED = 8,  /* fills up the vocabulary: no text becomes it */
  WI_TOKEN_USER = 16    /* a word that was added to the vocabulary: found in text as a whole */
};

typedef struct wi_token_info {
  uint32_t struct_size;
  int32_t flags;    /* WI_TOKEN_*, or-ed */
  const char* text; /* as detokenize writes it within a text with KEEP_SPECIAL; any bytes, not NUL-terminated,
                       never NULL. Owned by the model, valid as long as it */
  uint64_t text_length; /* bytes */
} wi_token_info;

/* Flags of tokenize and append_text. */
enum wi_tokenize_flag {
  WI_TOKENIZE_ADD_BOS = 1,      /* put the beginning-of-sequence token first, if the model's texts begin so */
  WI_TOKENIZE_PARSE_SPECIAL = 2 /* text like <|end|> becomes that control token; else it is text */
};
/* Flags of detokenize. */
enum wi_detokenize_flag {
  WI_DETOKENIZE_KEEP_SPECIAL = 1 /* write control tokens as their names; else they are left out */
};
/* Flags of wi_chat_params. */
enum wi_chat_flag { WI_CHAT_ADD_GENERATION_PROMPT = 1 }; /* end with the opening of the assistant's answer */

typedef struct wi_chat_message {
  uint32_t struct_size;
  int32_t reserved;
  const char* role;    /* NUL-terminated: "system", "user", "assistant", "tool" or what the template knows */
  const char* content; /* NULL with content_length 0: an empty text, or what fields_json calls content */
  uint64_t content_length; /* bytes */
  const char* fields_json; /* NULL, empty, or a JSON object, NUL-terminated: more fields. Since 0.2 */
} wi_chat_message;

/* How a conversation is rendered. Since 0.2. */
typedef struct wi_chat_params {
  uint32_t struct_size;
  uint32_t flags;         /* WI_CHAT_*, or-ed */
  const char* tools_json; /* NULL or empty: no tools. Else a JSON array of function schemas, NUL-terminated */
  const char* variables_json; /* NULL, empty, or a JSON object, NUL-terminated: {"enable_thinking": false} */
  int64_t now;                /* for templates that print a date: seconds since 1970. 0: the clock's */
} wi_chat_params;

/* Opens a model: a .gguf file (of a split set, the first) or a directory with config.json, tokenizer.json and
 * *.safetensors. Architectures llama, qwen2 and qwen3; weights f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1,
 * q2_K, q3_K, q4_K, q5_K, q6_K, of which a device takes some (wi_runtime_params.device).
 * The file must not change during the call, and if weights stay mapped, while the model lives. Files are not
 * trusted: what is broken, or made to cost, is refused in time and memory that grow with its length at most.
 * Whatever would change what the model computes and is not implemented is refused by name.
 *   Sliding windows (since 0.2) are taken where the file has them: in a directory as transformers does, for
 * Mistral sliding_window, for Qwen with use_sliding_window, max_window_layers and layer_types; in a GGUF
 * file attention.sliding_window, a number or one for each layer, for the layers that
 * attention.sliding_window_pattern lists (a bool for each); without that list a single number is for all
 * layers in llama and refused in Qwen. One that is no shorter than max_positions is none;
 * what would make a session longer than such a window is WI_E_UNSUPPORTED then. So is what goes beyond a chunk of
 * dual_chunk_attention_config, which max_positions says there.
 *   runtime    whose threads and budget the model's sessions use
 *   path       NUL-terminated
 *   params     NULL: all defaults, no progress
 *   cancel     may be NULL
 *   model_out  out: a new handle
 * Errors: WI_E_IO; WI_E_CANCELLED; WI_E_FORMAT for a broken file; WI_E_UNSUPPORTED for an architecture,
 * weight type, tokenizer, RoPE scaling, head_dim (which is to be a multiple of 8) or other field that is not
 * implemented, by name; WI_E_MEMORY if a copy of the weights, with those that other models hold, is more than
 * this process may use. Thread-safe. */
WI_API wi_status wi_model_open(wi_runtime* runtime, const char* path, const wi_model_params* params,
                               wi_cancel* cancel, wi_model** model_out, wi_error* error);

/* Opens a model from a whole GGUF file in the host's memory: one file, no part of a split set. The weights
 * are used where they lie, and the memory must stay as it is while the model or a session of it lives; with
 * WI_WEIGHTS_COPIED it may go or change when the call returns. Since 0.2.
 *   data   aligned to 8 bytes, unless the weights are copied
 *   bytes  its length
 *   The other parameters, errors and the thread rule are wi_model_open's. */
WI_API wi_status wi_model_open_memory(wi_runtime* runtime, const void* data, uint64_t bytes,
                                      const wi_model_params* params, wi_cancel* cancel, wi_model** model_out,
                                      wi_error* error);

/* Opens a model from a whole GGUF file that is read through a callback, once, from its beginning to its end,
 * a megabyte at most at a time. The weights are copied, whatever params says of them; progress counts the
 * bytes of the file. Since 0.2.
 *   reader  see there
 * The other parameters, errors and the thread rule are
 * wi_model_open's. */
WI_API wi_status wi_model_open_reader(wi_runtime* runtime, const wi_reader* reader,
                                      const wi_model_params* params, wi_cancel* cancel, wi_model** model_out,
                                      wi_error* error);
WI_API wi_model* wi_model_retain(wi_model* model);
WI_API void wi_model_release(wi_model* model);

/* The model's hyper-parameters. Any thread. */
WI_API wi_status wi_model_get_info(wi_model* model, wi_model_info* info_out, wi_error* error);

/* What the model's files say about it, by key. A GGUF's keys are its own ("general.name",
 * "llama.block_count", "tokenizer.chat_template"); a directory has config.json's, and "general.name" and
 * "tokenizer.chat_template". Since 0.2.
 *   key         NUL-terminated
 *   text        out: (capacity) bytes, not NUL-terminated, or NULL with capacity 0. Strings are as they are,
 *               everything else is JSON: numbers, true and false, arrays and objects of them; in those, bytes
 *               that are no UTF-8 are U+FFFD, and numbers that are not finite null
 *   length_out  out: bytes that the text has
 * Errors: WI_E_ARGUMENT for a key that the model does not have, by name. Any thread. */
WI_API wi_status wi_model_get_metadata(wi_model* model, const char* key, char* text, uint64_t capacity,
                                       uint64_t* length_out, wi_error* error);

/* How many keys there are. Any thread. Since 0.2. */
WI_API wi_status wi_model_metadata_count(wi_model* model, uint64_t* count_out, wi_error* error);

/* One of them, to list them all: index in [0, count), of a GGUF file in its order, of a folder in
 * that of the alphabet.
 *   text, capacity, length_out  as for wi_model_get_metadata
 * Errors: none of its own. Any thread. Since 0.2. */
WI_API wi_status wi_model_metadata_key(wi_model* model, uint64_t index, char* text, uint64_t capacity,
                                       uint64_t* length_out, wi_error* error);

/* One token of the vocabulary. Since 0.2.
 *   token     in [0, vocab)
 *   info_out  out
 * Errors: none of its own. Any thread. */
WI_API wi_status wi_model_token_info(wi_model* model, int32_t token, wi_token_info* info_out,
                                     wi_error* error);

/* Text to token ids: those that the model was trained with. A tokenizer.json gives what the library
 * tokenizers gives, set up by transformers where other files have a say: normal form, white space that added
 * tokens take along, Metaspace, what a tokenizer_class (Llama's, Qwen2's, GPT2's) builds itself; and BOS where
 * its post-processor puts it, whatever add_bos_token says beside it. The rest was refused by wi_model_open. In a
 * GGUF file <|im_end|> and others that llama.cpp knows by their text are control tokens whatever type the file
 * gives them. It says nothing of normal forms: text is taken as it is, as by llama.cpp, so that Qwen's ids of
 * text not in NFC differ from its tokenizer.json's; a host that wants those normalises first. Nothing but BOS is
 * ever put before or behind the text.
 *   text, length  bytes; NULL only if length is 0
 *   flags         WI_TOKENIZE_*, or-ed
 *   tokens        out: (capacity) ids, or NULL with capacity 0
 *   count_out     out: ids that the text has
 * The call takes no cancel token: its time is bounded by the text's length, whatever file it came with.
 * Errors: WI_E_ARGUMENT for a byte that is no UTF-8, if the vocabulary has neither that byte nor an unknown
 * token; WI_E_UNSUPPORTED where the file's own pattern takes more than a million steps and 256 for each byte
 * of the text, or its normalizer makes the text longer by more than 1 MB and 64 bytes for each. Any thread. */
WI_API wi_status wi_model_tokenize(wi_model* model, const char* text, uint64_t length, uint32_t flags,
                                   int32_t* tokens, uint64_t capacity, uint64_t* count_out, wi_error* error);

/* Token ids to text, the inverse of tokenize: the same bytes come back, but where the file's tokenizer loses
 * some. It loses what its normal form changes (text that is in NFC stays), white space that an added token
 * takes along, what it calls unknown, and under Metaspace the first space of the text ("x" and " x" have the
 * same ids). Part of a sequence may end within a code point.
 *   tokens, count  ids in [0, vocab)
 *   flags          WI_DETOKENIZE_*
 *   text           out: (capacity) bytes, not NUL-terminated, or NULL with capacity 0
 *   length_out     out: bytes that the text has
 * Errors: none of its own. Any thread. */
WI_API wi_status wi_model_detokenize(wi_model* model, const int32_t* tokens, uint64_t count, uint32_t flags,
                                     char* text, uint64_t capacity, uint64_t* length_out, wi_error* error);

/* Renders a conversation with the chat template of the model's file, as the text that the model was trained
 * on. The template is a program in the language of Jinja; it is run as Hugging Face transformers runs it and
 * prints the same text, byte for byte. To hand a conversation to a session take wi_model_chat_tokens: in this
 * text, what a user wrote can no longer be told from what the template wrote.
 *   messages, count  in order, oldest first; at least one. A template sees role, content and the members of
 *                    fields_json (tool_calls, tool_call_id, name, ...), which must not name role, nor content
 *                    beside a content that is not NULL. Members that are null are left out, as transformers
 *                    does; a list of parts is passed as it is. Reasoning may be called reasoning_content,
 *                    reasoning or thinking: it is found under the first and the last name in any case
 *   params           NULL: no flags, no tools, no variables, the clock's time. Of several templates in the
 *                    file the one called tool_use is taken where there are tools, else the default.
 *                    variables_json sets what the template asks for by name, over bos_token and the like; it
 *                    must not name messages, tools or add_generation_prompt. Dates are of this process's
 *                    time zone
 *   text             out: (capacity) bytes, not NUL-terminated, or NULL with capacity 0
 *   length_out       out: bytes that the text has
 * Errors: WI_E_UNSUPPORTED if the file has no template (wi_model_info's chat_family is empty: pass a ready
 * prompt instead), if the template uses something of the language that this library does not know, by name
 * and line, or if it reaches a limit: 1 MB of template, 500 levels of blocks and calls, 10 million steps,
 * 64 MB and 64 bytes for each of the conversation. WI_E_FORMAT for a template that is broken. WI_E_ARGUMENT
 * for a conversation that the template refuses, with its own words, or cannot render (a field that it needs
 * is missing), and for JSON that is none. Any thread. */
WI_API wi_status wi_model_chat_render(wi_model* model, const wi_chat_message* messages, uint64_t count,
                                      const wi_chat_params* params, char* text, uint64_t capacity,
                                      uint64_t* length_out, wi_error* error);

/* Renders a conversation as wi_model_chat_render does, to token ids. Only the template's own text makes
 * control tokens: every byte that came from content, fields_json, tools_json or variables_json is text, also
 * where it spells <|end|> or completes what the template began; so for added tokens that are not flagged as
 * special, if the template writes them as marks. A role of letters, digits, - and _ counts as the template's
 * own, since many write '<|' + role + '|>'; do not take roles from strangers. Where the host's text spells no
 * such token the ids are those of the whole text with WI_TOKENIZE_PARSE_SPECIAL. BOS is among them where the
 * template prints it, so nothing is to be added: pass them to wi_session_prefill. Since 0.2.
 *   messages, count, params  as for wi_model_chat_render
 *   tokens                   out: (capacity) ids, or NULL with capacity 0
 *   count_out                out: ids that the conversation has
 * This call takes no cancel token either: rendering has its limits, and the rest is as for wi_model_tokenize.
 * Errors: as wi_model_chat_render and wi_model_tokenize. Any thread. */
WI_API wi_status wi_model_chat_tokens(wi_model* model, const wi_chat_message* messages, uint64_t count,
                                      const wi_chat_params* params, int32_t* tokens, uint64_t capacity,
                                      uint64_t* count_out, wi_error* error);

/* ============================================ Policy ============================================ */

/* Type of stored keys and values. Scores, sums and merges are f32 with all of them. */
enum wi_kv_type { WI_KV_F16 = 0, WI_KV_BF16 = 1, WI_KV_F32 = 2 };

/* How the past is indexed and what a query reads of it. A sequence is its first 4 tokens, sealed segments,
 * and the recent tokens. The first and the recent ones are attended exactly (steady zone). A segment's keys
 * are clustered per layer and KV head; a query ranks all clusters, reads the best exactly (retrieval zone),
 * takes the next through centroid, size and value sum (estimation zone), and drops the rest, counted in the
 * statistics. RetroInfer section 4.2; the defaults are those of section 5.1. Under "full" nothing is
 * clustered and every token is read. Two more are there to be compared with: "streaming" reads the newest
 * indexed tokens that budget pays for (StreamingLLM), "blocks" the pages of 16 consecutive tokens whose keys
 * may score highest by their bounds (Quest); neither estimates anything. Fields that a policy does not use
 * are checked all the same.
 *   Layers with a sliding window (since 0.2; wi_model_open says which) are outside of all this. Under every
 * policy their queries attend exactly to the last tokens that the window shows, their own included, and to no
 * others, the first ones neither; they have no index. Their keys and values are kept all the same, so that
 * truncate, forks and files work as ever: a window saves time, not memory. */
typedef struct wi_policy_params {
  uint32_t struct_size;
  /* Tokens of the longest segments: a multiple of 64 in [64, 1048576]. 0: 8192. Where segments begin and end
   * depends on positions alone (since 0.2): behind its first 4 tokens a prompt is cut into blocks of so many,
   * and what is left of it into aligned blocks of half of that, of a quarter, ... down to
   * decode_segment_tokens, whatever calls its tokens came in */
  int32_t segment_tokens;
  /* NUL-terminated: "wave", "full", "streaming" or "blocks". NULL: "wave". Others are WI_E_UNSUPPORTED */
  const char* name;
  /* Tokens of the shortest segments, and of those that are sealed while decoding; range as above. 0: 256;
   * what is not sealed yet is read exactly with each token, and with 1024 (5.5) that is most of what is read. While
   * decoding, a segment is made beside the steps, a share of it with each, and takes its tokens' place when 384
   * tokens and local_window have come behind them: at a fixed token, so that neither threads nor timing change an
   * answer (since 0.2) */
  int32_t decode_segment_tokens;
  int32_t tokens_per_centroid; /* mean cluster size, 1 to 1024; much larger clusters are split. 0: 16 */
  int32_t kmeans_iterations;   /* spherical k-means, 1 to 100. 0: 10 */
  /* Most recent tokens that are never sealed, at most 1048576. 0: 64; negative: none */
  int32_t local_window;
  /* Share of the indexed tokens read exactly, in (0, 1]; 1: all. 0: 0.018 */
  float budget;
  /* Share of the clusters estimated, at most 1; 1: all that are not read. 0: 0.232; negative: none */
  float estimation;
  /* In [0, 1). Above 0: instead of a fixed budget, read clusters until the estimated share of attention mass
   * covered exactly reaches this. 0: fixed budget */
  float target_mass;
  /* With target_mass: at least this share, in (0, budget_ceiling]. 0: budget / 8, at most budget_ceiling */
  float budget_floor;
  float budget_ceiling; /* with target_mass: at most this share, in (0, 1]. 0: budget * 4, at most 1 */
  /* Under "wave": where the newest tokens, at least three of them, stood before, the clusters of what came
   * then are read whatever their rank, from at most half of the budget. So many such places, at most 8, the
   * longest repeats. Not in RetroInfer. 0: 2; negative: none */
  int32_t repeats;
} wi_policy_params;

/* ============================================ Session ============================================ */

/* Bytes of a length. Since 0.2. */
typedef struct wi_text {
  const char* text; /* NULL only if length is 0 */
  uint64_t length;  /* bytes */
} wi_text;

/* Since 0.2. */
typedef struct wi_logit_bias {
  int32_t token; /* in [0, vocab) */
  float bias;    /* added to its logit; -INFINITY forbids it. Not NaN. Several of one token add up */
} wi_logit_bias;

/* How decode picks a token from the logits: logit_bias, logits_callback, penalty, temperature, top_k, min_p,
 * top_p, in this order. Deterministic: the same seed and the same logits give the same tokens, on every
 * machine. On a device it is the device that picks, at the end of its step. Where there is bias, callback or penalty, and
 * of logits that are there already (the first behind a prompt, those of wi_session_logits), the host does. Where nothing
 * is left to pick, decode fails with WI_E_STATE and says so. */
typedef struct wi_sampling_params {
  uint32_t struct_size;
  float temperature; /* [0, 100]. 0: greedy, always the best token */
  int32_t top_k;     /* keep so many best tokens. 0: all */
  float top_p;       /* (0, 1]: keep the best tokens that have this probability together. 0: all */
  float min_p;       /* [0, 1): drop tokens less likely than this share of the best one. 0: off */
  /* (0, 100]: positive logits of recent tokens are divided by it, negative ones multiplied. 0: 1, off */
  float repetition_penalty;
  int32_t repetition_window; /* recent tokens that it looks at. 0: 64 */
  int32_t reserved;
  uint64_t seed;
  /* The fields from here on are since 0.2. */
  const wi_logit_bias* logit_bias; /* (logit_bias_count); copied */
  uint64_t logit_bias_count;
  /* NULL: none. Called by decode steps of this session and of forks that inherit it, on the thread that makes
   * the call. It and logits_user must live until sampling is set anew, or the last of these sessions is
   * released. wi_session_save does not save it */
  wi_logits_callback logits_callback;
  void* logits_user; /* its first argument */
  /* Strings that end an answer, (stop_count), at most 64 of 1 to 1024 bytes; copied. Text that may yet become
   * one is held back, also from one token to the next, until that is decided; when one is complete the event
   * is WI_EVENT_STOP, and neither it nor what its last token has beyond it is ever told. Looked for in what
   * events tell, and in the bytes of that where they are no UTF-8: not in prompts, nor in control tokens */
  const wi_text* stops;
  uint64_t stop_count;
  int32_t top_logprobs; /* 0 to 64: how many of the likeliest tokens an event lists */
  int32_t reserved_2;
} wi_sampling_params;

enum wi_prefix_reuse {
  WI_PREFIX_REUSE_AUTO = 0, /* what changes no bit; when a session is loaded: as saved, but for ON */
  WI_PREFIX_REUSE_OFF = 1,
  WI_PREFIX_REUSE_ON = 2 /* whatever there is; since 0.2 */
};

typedef struct wi_session_params {
  uint32_t struct_size;
  int32_t kv_type;                    /* WI_KV_* */
  const wi_policy_params* policy;     /* NULL: all defaults */
  const wi_sampling_params* sampling; /* NULL: greedy */
  /* Most bytes of this session's KV and index, shared segments included. 0: only the runtime's counts. What a segment
   * in the making takes for a while is not counted here, but in the runtime's: up to twice as much in all,
   * where segments are as long as the session */
  uint64_t kv_budget_bytes;
  /* Chunks of at most so many tokens, a pending one included, appended to a past that has segments, read it
   * through the policy as a decode step does, so that the answer to a short question starts within a few
   * steps' time. 0: every appended token attends exactly to everything before it */
  int32_t sparse_read_tokens;
  /* WI_PREFIX_REUSE_*. A session's first prompt that starts as another living session's did, with the same model and
   * parameters, takes over its sealed segments instead of computing them, as far as they are those that the
   * prompt would have itself: what other sessions hold does not change where a prompt is cut. AUTO: and no bit of its
   * logits. Numbers depend on what is computed beside them, so that takes both prompts to be read in chunks of the
   * default size, and whole chunks (of 2,048 tokens; of 1,024 for models with an ffn of more than 8,192) are taken
   * over. ON: shorter ones, and those of other chunks, too; what comes then differs as it does between two sizes of
   * chunks, by rounding, and with it a sampled token now and then */
  int32_t prefix_reuse;
  /* With wi_runtime_params.spill_folder, or on a device: the share of this session's sealed keys and values that may
   * stay in fast memory, in (0, 1]; the rest is in the slow tier. Of what it shares with other sessions, they have one
   * share together. What is read of the slow tier stays in frames that all sessions have in common, and shares add up
   * to how many there are: those of an idle session serve whichever steps. 0: as much as the budgets have room for; on
   * a device, where that is not all, frames for 5 % of them included. Since 0.2 */
  float kv_fast_share;
  int32_t reserved_1;
} wi_session_params;

typedef struct wi_memory_plan {
  uint32_t struct_size;
  /* 1: kv, index and sealing fit the budgets, and everything the memory this process may use; else 0 */
  int32_t fits;
  uint64_t weight_bytes;  /* if mapped, shared with other processes and taken back under pressure */
  uint64_t kv_bytes;      /* keys and values of all tokens, in layers with a sliding window too */
  uint64_t index_bytes;   /* at most, of a prompt; where decode_segment_tokens is small an answer has more */
  uint64_t sealing_bytes; /* most that is needed besides while segments are being built */
  /* Activations, and what is read of the slow tier at a time, estimated: a part of a chunk's past, and what a step
   * looks up in one layer, which under "full" is all of that layer. Shared by the runtime's sessions that take turns;
   * in a batch, and among tasks, each one more adds what it looks up itself */
  uint64_t scratch_bytes;
  uint64_t total_bytes; /* sum of these */
  uint64_t max_tokens;  /* most tokens that fit the budgets if this session has the runtime's to itself */
  /* Of kv, index and sealing, what must be in fast memory where the runtime has a slow tier: recent tokens, of a
   * segment in the making a few heads (on a device, all of it), the index of all; and what spill_bytes has no room for
   * if nobody else is in it. With one, fits and max_tokens count no more than that, and where kv_fast_share is given,
   * that the rest may leave. Since 0.2 */
  uint64_t fast_bytes;
} wi_memory_plan;

/* Kinds that a host does not know end an answer too: go on while the kind is WI_EVENT_TOKEN. */
enum wi_event_kind {
  WI_EVENT_TOKEN = 0,
  WI_EVENT_END = 1, /* the token ends the answer; text is what was held back: an incomplete code point, what
                       might have become a stop string, or what is before one that the code point completes */
  /* The token completes one of the stop strings; text is what was held back before that. Since 0.2 */
  WI_EVENT_STOP = 2,
  /* Of tasks only, each without a token (token is -1) and the last event of its task; since 0.2: */
  /* wi_task_params.max_tokens tokens were written; what of their text is held back comes if the session decodes on */
  WI_EVENT_LIMIT = 16,
  WI_EVENT_CANCELLED = 17, /* wi_task_cancel, or the task's handle was released */
  WI_EVENT_FAILED = 18     /* wi_task_get_info says why */
};

/* Since 0.2. */
typedef struct wi_token_logprob {
  int32_t token;
  float logprob; /* as in wi_event */
} wi_token_logprob;

typedef struct wi_event {
  uint32_t struct_size;
  int32_t kind;  /* WI_EVENT_* */
  int32_t token; /* its id, in [0, vocab) */
  int32_t reserved;
  /* UTF-8, whole code points, U+FFFD for what can never become one; not NUL-terminated, never NULL. Owned by
   * the session, valid until the next call on it or its release. */
  const char* text;
  uint64_t text_length; /* bytes; 0 while a code point is incomplete, and for control tokens */
  /* The fields from here on are since 0.2. Natural logarithm of the token's probability under the model
   * itself: softmax of its logits as wi_session_logits gives them, at temperature 1, over the whole
   * vocabulary, before bias, callback, penalty and cuts. A logit that is NaN counts as -infinity; a token
   * that has one has -infinity */
  float logprob;
  int32_t reserved_2;
  /* The likeliest tokens under the same softmax, best first, of equals the lower id. NULL and 0 unless
   * wi_sampling_params.top_logprobs asks for them; fewer than that only if fewer logits are numbers. Owned by
   * the session, valid as text is */
  const wi_token_logprob* top;
  uint64_t top_count;
} wi_event;

typedef struct wi_prefill_params {
  uint32_t struct_size;
  /* Tokens computed at once, in pieces of 8192 where they are more; at most 1048576. 0: chosen by the library */
  int32_t chunk_tokens;
  /* NULL, or: tokens done, tokens in this call. After each chunk, and at least every 250 ms within them and while keys
   * and values leave the fast tier, with the same numbers again (where a device takes longer for two layers, or a disk
   * for what some heads have of a segment, so seldom). While its text is tokenised: 0, and the text's bytes. */
  wi_progress_callback progress;
  void* progress_user; /* its first argument */
  /* NULL, or out: logits of every token of this call, (tokens, vocab). Unspecified after a failure */
  float* logits;
  uint64_t logits_capacity; /* floats, at least tokens * vocab; 0 if logits is NULL */
} wi_prefill_params;

/* Sums are over the session's life; a fork starts from zero. What is read and looked up is counted of decode steps;
 * buffer_* also of chunks of a prompt that read as those do (wi_session_params.sparse_read_tokens), each token of
 * which looks up as a step does. */
typedef struct wi_session_stats {
  uint32_t struct_size;
  int32_t segments;            /* sealed */
  uint64_t tokens;             /* in the session, the pending one included */
  uint64_t kv_bytes;           /* held in fast memory: keys, values and index, shared segments included */
  uint64_t index_bytes;        /* of them */
  uint64_t prefill_tokens;     /* given to prefill and append_text */
  uint64_t decode_steps;       /* of a wi_kv: calls of attend */
  uint64_t prefix_tokens;      /* of prefill_tokens: taken over from other sessions instead of computed */
  uint64_t kv_bytes_read;      /* by decode steps: keys, values and index */
  uint64_t index_bytes_read;   /* of them */
  uint64_t retrieved_tokens;   /* read from segments exactly; summed over steps, layers and KV heads */
  uint64_t estimated_clusters; /* likewise */
  uint64_t dropped_clusters;   /* ranked, but neither read nor estimated; likewise */
  /* Partitions found in the fast tier, or read for another session of the same step (another token of the same chunk),
   * which counts them; likewise */
  uint64_t buffer_hits;
  uint64_t buffer_misses; /* partitions that had to be brought there; likewise */
  uint64_t prefill_ns;    /* of a task, with what others had of the engine meanwhile */
  uint64_t index_ns;      /* of prefill_ns and decode_ns: sealing segments */
  /* Of decode, accept and logits, without what it takes to make room before a step; in a batch, of the whole step, as
   * its parts below */
  uint64_t decode_ns;
  /* On a device the next five are the time that the host took to ask for the work, not the device's to do it; the wait
   * for all of it at a step's end is in weights_ns. */
  /* Of decode_ns: everything but attention, mostly products with weights; sampling. Of a step that computes the last
   * token of a cut prompt anew, all. */
  uint64_t weights_ns;
  uint64_t select_ns;   /* of decode_ns: looking up repeats, ranking clusters */
  uint64_t retrieve_ns; /* of decode_ns: bringing them to the fast tier */
  uint64_t attend_ns;   /* of decode_ns: exact attention */
  uint64_t estimate_ns; /* of decode_ns: the estimation zone */
  /* Share of the attention mass that was covered exactly, mean over steps, layers and heads (of the query
   * heads that share a KV head one a step, in turns), not counting layers with a sliding window, which leave
   * nothing out; 1 before the first such step; 0 under a policy that leaves clusters out without an estimate
   * ("streaming", "blocks"), for which it is not known. The estimate takes each
   * cluster that was not read by its centroid and by how far its keys spread about it (at the centroid alone,
   * section 4.2, a cluster's mass is only bounded from below); the certified value an upper bound from its
   * radius, and is thus a lower bound of the true share, but for rounding: queries are ranked in 16 bits. */
  double estimated_coverage;
  double certified_coverage;
  double certified_coverage_min; /* over steps, layers and heads */
  /* Keys and values in the slow tier, be it spill_folder's file, the one that the session was loaded from or, on a
   * device, pinned memory;
   * shared segments included. Since 0.2 */
  uint64_t slow_bytes;
  /* Of a slow tier that is a file, what became of buffer_misses, each of which is one of the first three: found
   * frames to stay in, found none that was free, or was brought in by another step meanwhile: not by the same one,
   * where that is a hit. Since 0.2 */
  uint64_t buffer_admissions;
  uint64_t buffer_refusals;
  uint64_t buffer_late;
  uint64_t buffer_evictions; /* partitions, of whichever session, that made room for them */
  uint64_t buffer_stalls; /* lookups that waited for the slow tier; summed over steps, layers and KV heads */
} wi_session_stats;

/* What a session of so many tokens would take, without making one: by one call and decode steps, or by a task.
 * A prompt in pieces takes what a later piece goes back to if it fails besides: tokens of which segments are made.
 *   params    of the session to be; NULL: all defaults
 *   tokens    prompt and answer together, at most 2147483647
 *   plan_out  out
 * Errors: as wi_session_create. Any thread. */
WI_API wi_status wi_model_plan_memory(wi_model* model, const wi_session_params* params, uint64_t tokens,
                                      wi_memory_plan* plan_out, wi_error* error);

/* Makes an empty session. It takes memory only as tokens come.
 *   params       NULL: all defaults
 *   session_out  out: a new handle
 * Errors: WI_E_UNSUPPORTED for an unknown policy. Any thread. */
WI_API wi_status wi_session_create(wi_model* model, const wi_session_params* params, wi_session** session_out,
                                   wi_error* error);
WI_API wi_session* wi_session_retain(wi_session* session);
WI_API void wi_session_release(wi_session* session);

/* Appends tokens and computes their keys and values (and those of a token that is pending after a decode), in
 * chunks. Tokens attend exactly to everything before them, unless sparse_read_tokens says otherwise. Full
 * segments are sealed on the way. Calling it in pieces gives the same as calling it once: the same segments,
 * with keys and values that differ by rounding. For that a later piece makes short segments of earlier ones
 * part of a longer one; but those that were there at a decode step, a truncate or the fork that made
 * this session stay as they are, so that the next turn of a conversation goes over no old one again.
 *   tokens, count  ids in [0, vocab), copied at once; count 0 does nothing
 *   params         NULL: all defaults
 *   cancel         may be NULL
 * What events still held back of a text is dropped.
 * Errors: WI_E_UNSUPPORTED if keys or values are beyond kv_type, naming the layer and the types that hold
 * them, or the session would be longer than the library can compute the model (wi_model_open); WI_E_BUDGET,
 * WI_E_CANCELLED, WI_E_BUSY; of the slow tier WI_E_IO, if its disk fails, and WI_E_FORMAT, if the
 * file that the session was loaded from was damaged meanwhile; the session is as it was before the call. One
 * thread. */
WI_API wi_status wi_session_prefill(wi_session* session, const int32_t* tokens, uint64_t count,
                                    const wi_prefill_params* params, wi_cancel* cancel, wi_error* error);

/* Tokenises and prefills.
 *   text, length  bytes; NULL only if length is 0
 *   flags         WI_TOKENIZE_*, or-ed
 * The rest, errors and threads: as wi_session_prefill. */
WI_API wi_status wi_session_append_text(wi_session* session, const char* text, uint64_t length,
                                        uint32_t flags, const wi_prefill_params* params, wi_cancel* cancel,
                                        wi_error* error);

/* Appends one token: samples it from the logits of the last computed one. The new token is pending: its own
 * keys and values are computed by the next call that needs them, so that the first token of an answer costs
 * no step, and the last one neither. A token that ends the answer is an event of kind WI_EVENT_END; it is in
 * the session like any other, and the host may go on: decode more, append the next question, or truncate.
 *   cancel     may be NULL
 *   event_out  out
 * Errors: WI_E_STATE if the session is empty, or bias, callback or the model itself leave no token to sample;
 * WI_E_UNSUPPORTED if the token before has keys or values beyond kv_type, naming the layer and the types that
 * hold them, or is beyond where the library can compute the model (wi_model_open); WI_E_BUDGET,
 * WI_E_CANCELLED, WI_E_BUSY; WI_E_IO and WI_E_FORMAT of the slow tier, as wi_session_prefill; no token is lost
 * and none is added, and the random numbers are where they were. One thread. */
WI_API wi_status wi_session_decode(wi_session* session, wi_cancel* cancel, wi_event* event_out,
                                   wi_error* error);

/* Appends one token that the host chose, exactly as decode appends one that it sampled: pending, read through
 * the policy, counted as a decode step, with its text, log-probability and end; stop strings are looked for.
 * The random numbers stay where they are, and bias, callback and cuts do not apply. With wi_session_logits
 * this is decode with a sampler of one's own, at the cost of decode. Since 0.2.
 *   token      in [0, vocab)
 *   cancel     may be NULL
 *   event_out  out
 * Errors: as wi_session_decode. One thread. */
WI_API wi_status wi_session_accept(wi_session* session, int32_t token, wi_cancel* cancel, wi_event* event_out,
                                   wi_error* error);

/* Logits of the last token, those that decode would sample from; computes them first if it is pending. For
 * hosts with a sampler of their own: logits, pick, wi_session_accept of the one token picked.
 *   cancel     may be NULL
 *   logits     out: (vocab) f32, or NULL with capacity 0
 *   capacity   floats
 *   count_out  out: vocab
 * Errors: as wi_session_decode; asking for the size computes nothing. One thread. */
WI_API wi_status wi_session_logits(wi_session* session, wi_cancel* cancel, float* logits, uint64_t capacity,
                                   uint64_t* count_out, wi_error* error);

/* The ids of all tokens, the pending one included.
 *   tokens     out: (capacity) ids, or NULL with capacity 0
 *   count_out  out: tokens in the session
 * Errors: WI_E_BUSY. One thread. */
WI_API wi_status wi_session_tokens(wi_session* session, int32_t* tokens, uint64_t capacity,
                                   uint64_t* count_out, wi_error* error);

/* A second session that goes on from here on its own: same tokens, parameters, logits and sampler state. It
 * shares everything sealed and copies the rest when one of the two writes; takes microseconds. The two may be
 * used by two threads at once.
 *   fork_out  out: a new handle
 * Errors: WI_E_BUSY. One thread. */
WI_API wi_status wi_session_fork(wi_session* session, wi_session** fork_out, wi_error* error);

/* A fork under other parameters: the same tokens, keys, values and logits, read through another policy or
 * another budget, without computing the prompt again. Where the policy and what shapes its index are the
 * same, everything sealed is shared; else keys and values are copied and indexed anew, as if all tokens had
 * been given to one prefill.
 *   params    as for wi_session_create, but that a kv_type of 0 is the session's and that without sampling the sampler
 *             goes on where it is: of all else what is not given is the default, not the session's
 *   cancel    may be NULL
 *   fork_out  out: a new handle
 * Errors: WI_E_ARGUMENT if kv_type is another than the session's; WI_E_UNSUPPORTED for an unknown policy; WI_E_BUDGET,
 * WI_E_CANCELLED, WI_E_BUSY; WI_E_IO and WI_E_FORMAT of the slow tier, as wi_session_prefill. One thread. */
WI_API wi_status wi_session_fork_as(wi_session* session, const wi_session_params* params, wi_cancel* cancel,
                                    wi_session** fork_out, wi_error* error);

/* Cuts the session back to its first `tokens` tokens; nothing, if it has exactly so many. The new last one is pending:
 * its logits are computed by the next call that needs them, and exactly if it is a token of a prompt. Where the last
 * prefill ended, and anywhere in the answer behind it, the session is as it was then: the same logits, bit for bit, and
 * the same segments, so that another answer starts where the first one did; in a fork too, and after a load of what
 * this version or a later one saved. (The sampler goes on where it is; wi_session_set_sampling starts it anew.) What
 * events still held back of a text is dropped. Within a prompt the logits are those bits but for rounding: a token by
 * itself is computed otherwise than in a chunk. A segment that is cut there keeps its clusters as far as they go, and
 * at least the local_window tokens before the cut are recent tokens again: that copies the segment, at most
 * segment_tokens tokens, and looks for no clusters.
 *
 * An editor keeps a session of the whole file. When the cursor settles: fork it, and truncate the fork at the
 * cursor. At each keystroke: fork that one, which takes microseconds, and prefill what was typed, and what
 * comes after the cursor if the model is to read it. This costs computing these tokens, and clustering them
 * and at most 64 and a local_window before them.
 *   tokens  at most the session's
 * Errors: WI_E_ARGUMENT for more tokens than it has; WI_E_BUDGET, WI_E_MEMORY (for a moment a cut segment and what is
 * left of it are both held); WI_E_IO and WI_E_FORMAT of the slow tier, as wi_session_prefill; the session is as it was.
 * WI_E_BUSY. One thread. */
WI_API wi_status wi_session_truncate(wi_session* session, uint64_t tokens, wi_error* error);

/* Writes the session to a file: tokens, KV, index, sampler, parameters; checksummed. The file appears whole
 * or not at all: it is written without a name (beside the target, where the filesystem has no unnamed files),
 * synced, and put in its place; an older file at path survives any failure. A new file's mode is 0666 without
 * the process's umask; one that replaces another has its mode and, as far as the system permits, its owner
 * and group. A symbolic link at path is followed: what it names is written, the link stays. A process that is
 * killed may leave a file named .waveinfer-save-* in the folder; the next save into it removes that. A file
 * that would outgrow the process's limit (RLIMIT_FSIZE) is WI_E_IO with EFBIG; no signal is delivered. The
 * first save or load with a model reads all of its weights, for a hash that names it in the file.
 *   path    NUL-terminated; what is there, if anything, must be a regular file, and no open file of a process
 *           (/dev/stdout, /proc/self/fd/3): wi_session_save_to writes to those
 *   cancel  may be NULL
 * Errors: WI_E_IO; WI_E_FORMAT if the file that the session was loaded from was damaged meanwhile; WI_E_CANCELLED,
 * WI_E_BUSY. One thread. */
WI_API wi_status wi_session_save(wi_session* session, const char* path, wi_cancel* cancel, wi_error* error);

/* The same bytes to a host's callback, in pieces of at most 1 MiB and a little; since 0.2. The callback must
 * not use the session.
 *   writer  required
 *   cancel  may be NULL
 * Errors: WI_E_IO as the callback says, or of the slow tier; WI_E_FORMAT as wi_session_save; WI_E_CANCELLED,
 * WI_E_BUSY. One thread. */
WI_API wi_status wi_session_save_to(wi_session* session, const wi_writer* writer, wi_cancel* cancel,
                                    wi_error* error);

/* Bytes that a save of the session as it is now takes; since 0.2. Reads neither keys, values nor weights.
 *   bytes_out  out
 * Errors: WI_E_BUSY. One thread. */
WI_API wi_status wi_session_saved_bytes(wi_session* session, uint64_t* bytes_out, wi_error* error);

/* Reads a session back. What params leaves at zero is as it was saved: policy and each of its parameters, KV
 * type, budget, sparse_read_tokens, prefix_reuse, sampler. What is given must be as saved where it shapes
 * what is stored (kv_type, the policy's name, segment_tokens, decode_segment_tokens, tokens_per_centroid,
 * kmeans_iterations), and applies where it does not. As zero means "as saved", "none" is written so:
 * kv_budget_bytes UINT64_MAX; sparse_read_tokens, local_window, estimation, target_mass and repeats negative.
 * kv_fast_share is of this machine, and is not saved.
 * A budget that is given without floor and ceiling brings its own. sampling is taken whole, and its random
 * numbers start from its seed; without it the saved sampler goes on where it was. To read a session through
 * another policy, load it and call wi_session_fork_as.
 *
 * In a runtime with a slow tier (wi_runtime_params.spill_folder) the sealed keys and values stay where they are
 * in the file, which is their slow tier from then on: what is read at once is their index, some tenth of the file,
 * and nothing of it counts against spill_bytes. The file is kept open, to be read only, as long as a
 * segment of it is needed, by any fork; it may be renamed, removed, and replaced, as a save to its name does, and
 * any number of processes may share it. Each page of a few tokens has a checksum (index_bytes counts it), which
 * is verified whenever the page is read: should the file be damaged or written into, the call that meets that is
 * WI_E_FORMAT or, if it was cut or cannot be read, WI_E_IO, with its path; the session is as it was. The other
 * tokens are read into memory, as is everything of models with sliding windows and of files of an older version
 * of the format.
 *
 * A file whose index is of another version of the library is indexed anew, as by wi_session_fork_as; that
 * takes time, and memory for keys and values, twice unless they stay in the file. Nothing in the file is
 * trusted: it is read in pieces, a piece is used once its checksum is verified, and memory is taken only for
 * what the file is long enough to have.
 *   path         NUL-terminated; a regular file
 *   params       NULL: all as saved
 *   cancel       may be NULL; noticed within 100 ms
 *   session_out  out: a new handle
 * Errors: WI_E_IO; WI_E_FORMAT for a damaged or truncated file, one that is no session, or one of a version of
 * the format that this library does not read (it reads 2 and 3); WI_E_UNSUPPORTED for a policy, a sampler or a
 * section that this library does not know, by name; WI_E_MISMATCH for another model or other parameters;
 * WI_E_BUDGET, WI_E_CANCELLED. Any thread. */
WI_API wi_status wi_session_load(wi_model* model, const char* path, const wi_session_params* params,
                                 wi_cancel* cancel, wi_session** session_out, wi_error* error);

/* The same from a host's callback, which is asked for one piece after the other from the beginning to the
 * end; since 0.2. All of it is read into memory.
 *   reader  required; its bytes are what the save wrote
 * The rest: as wi_session_load. */
WI_API wi_status wi_session_load_from(wi_model* model, const wi_reader* reader,
                                      const wi_session_params* params, wi_cancel* cancel,
                                      wi_session** session_out, wi_error* error);

/* Replaces the sampling parameters and starts their random numbers anew from seed. Text that was held back
 * stays so, and the new stop strings decide about it with the next token.
 *   sampling  NULL: greedy
 * Errors: WI_E_ARGUMENT for a logit_bias of a token beyond the vocabulary; WI_E_BUSY. One thread. */
WI_API wi_status wi_session_set_sampling(wi_session* session, const wi_sampling_params* sampling,
                                         wi_error* error);

/* What the session has done, as of the end of its last call. Any thread, also while a call is running. */
WI_API wi_status wi_session_get_stats(wi_session* session, wi_session_stats* stats_out, wi_error* error);

/* ============================================ Batch ============================================ */

/* One wi_session_decode for each of many sessions in one step, so that weights are read once for all of them.
 * Every session gets the token that it would have got alone.
 *   sessions, count  of one model, each at most once; count 0 does nothing
 *   cancel           may be NULL
 *   events_out       out: (count), in the order of sessions
 * Errors: as wi_session_decode, for the batch as a whole: if one session fails, no session changes, and the
 * message begins with which one, as "sessions[3]: ". WI_E_BUSY if any session is in use. */
WI_API wi_status wi_batch_decode(wi_session* const* sessions, uint64_t count, wi_cancel* cancel,
                                 wi_event* events_out, wi_error* error);

/* ============================================ Tasks ============================================ */

/* A task is a session that the runtime works on by itself: it reads a prompt and writes an answer on the
 * runtime's threads, together with all other tasks, and the host fetches events when it likes. Prompts are
 * read in chunks between steps in which every task that writes gets its next token (continuous batching;
 * SPIN, section 5). A task gets exactly the tokens that the same calls would have given its session alone.
 *   The order: a task waits until its memory (wi_model_plan_memory of its prompt and answer; of a session that has tokens
 * and no slow tier, what it takes beside these) fits in each tier beside the
 * running ones'; with a slow tier all of it in the fast one, where the budget is enough for that alone, or, where no other
 * task runs and idle sessions leave less, what has to be there. Waiting tasks are admitted by priority, then age; ten
 * seconds of waiting count as one priority more, and nobody overtakes the first, so every task is admitted in the end.
 * Running tasks that read share the time by 2^priority; all that write are in each step, up to 64, and beyond that take
 * turns by 2^priority. Of two tasks that do the same, none gets less than 1/256 of what the other does: every task goes on,
 * whatever is submitted beside it. One that writes and has no room for its next
 * token sits out steps while keys and values leave the fast tier for it, and for up to ten seconds while others keep the
 * room; then it fails with WI_E_BUDGET.
 *   The session: until its task has ended, calls on it are WI_E_BUSY, statistics excepted; then it goes on as
 * after any call: the answer is part of it. After a cancelled or failed task it has the whole chunks of the
 * prompt and the tokens of the answer that were done; wi_session_tokens says which. A task keeps its session
 * alive until it has ended, and then no longer: what the host has let go of is freed on the engine's thread,
 * and events that were not fetched yet are the task's own. */

enum wi_task_state {
  WI_TASK_QUEUED = 0,    /* waits for memory */
  WI_TASK_READING = 1,   /* its prompt */
  WI_TASK_WRITING = 2,   /* its answer */
  WI_TASK_DONE = 3,      /* the answer has ended, or has max_tokens tokens */
  WI_TASK_CANCELLED = 4, /* wi_task_cancel, or the task's handle was released */
  WI_TASK_FAILED = 5     /* wi_task_info.status and message say why */
};

/* Tells that a task has new events or has ended. Runs on the engine's thread, for which every task waits: it
 * should only wake somebody. It may call wi_task_poll and wi_task_release. Releasing a task's last handle waits
 * for a callback of it that is running, and releasing the last handle of a runtime and of all that is its (models,
 * sessions) for every one: hold no lock then that these take. */
typedef void (*wi_task_callback)(void* user);

typedef struct wi_task_params {
  uint32_t struct_size;
  int32_t priority; /* -8 to 8, higher first; one more is twice the share of the time */
  /* The prompt: tokens, or text, or neither, to go on from what the session has. Copied. */
  const int32_t* tokens;
  uint64_t token_count;
  const char* text; /* tokenised on the engine's thread, in pieces between others' steps */
  uint64_t text_length;
  uint32_t tokenize_flags; /* WI_TOKENIZE_*, or-ed */
  int32_t reserved;
  uint64_t max_tokens; /* of the answer. 0: until it ends; planned with 1024 */
  const wi_sampling_params*
      sampling;            /* as wi_session_set_sampling at the start. NULL: the session's goes on */
  wi_task_callback notify; /* NULL: none */
  /* Its argument; must live until the last handle of the task is released: then it is not called any more */
  void* notify_user;
} wi_task_params;

typedef struct wi_task_info {
  uint32_t struct_size;
  int32_t state;  /* WI_TASK_* */
  int32_t status; /* of a failed or cancelled task: WI_E_* */
  int32_t reserved;
  uint64_t prompt_tokens;  /* 0 while a text is not tokenised yet */
  uint64_t prompt_done;    /* of them: read */
  uint64_t answer_tokens;  /* written, fetched or not */
  uint64_t queued_ns;      /* from submission to admission; 0: not admitted yet */
  uint64_t first_token_ns; /* from submission to the first token; 0: none yet */
  char message[256];       /* of a failed or cancelled task: what a call would have said; NUL-terminated */
  int64_t native_code;     /* of a failed task: as in wi_error, errno or a driver's code; 0: none */
} wi_task_info;

/* Submits a session: the call returns at once. The first task of a runtime starts its engine, one thread.
 *   session   used by nobody else now
 *   params    NULL: all defaults, which goes on from what the session has
 *   task_out  out: a new handle. Releasing the last one cancels a task that has not ended, within one step of the
 *             engine; for so long the engine goes on using what the session uses: a model's memory, callbacks
 * Errors: WI_E_BUSY if the session is in use, by a task too; WI_E_STATE if it is empty and there is no
 * prompt. What goes wrong later is the task's status. Any thread. */
WI_API wi_status wi_task_submit(wi_session* session, const wi_task_params* params, wi_task** task_out,
                                wi_error* error);
WI_API wi_task* wi_task_retain(wi_task* task);
WI_API void wi_task_release(wi_task* task);

/* Takes events that have come since the last call, oldest first; never waits. With a capacity of 0 it takes none.
 *   events_out  out: (capacity); their texts are the task's, valid until the next poll of it or its release
 *   count_out   out: events written; 0: none there now
 * Events end with one that is not WI_EVENT_TOKEN. Errors: none of its own. Any thread, one at a time. */
WI_API wi_status wi_task_poll(wi_task* task, wi_event* events_out, uint64_t capacity, uint64_t* count_out,
                              wi_error* error);

/* Waits until there are events to poll, or the task has ended.
 *   timeout_ns  at most so long; 0: not at all; negative: for ever
 *   ready_out   out: 1, or 0 if the time was over first
 * Errors: none of its own. Any thread. */
WI_API wi_status wi_task_wait(wi_task* task, int64_t timeout_ns, int32_t* ready_out, wi_error* error);

/* A file descriptor that is readable while there are events to poll, for epoll, poll and every event loop; now and
 * then once more, where a poll took an event before the engine had told of it: the next one finds nothing and ends
 * that. It is the task's and closed with it: the host neither reads nor closes it.
 *   fd_out  out
 * Errors: WI_E_IO if the system has none left. Any thread. */
WI_API wi_status wi_task_get_fd(wi_task* task, int32_t* fd_out, wi_error* error);

/* Ends the task within one step of the engine; it has its last event then, and its session is free. NULL is
 * ignored, and so is a task that has ended. Any thread. */
WI_API void wi_task_cancel(wi_task* task);

/* How far the task is. Any thread. */
WI_API wi_status wi_task_get_info(wi_task* task, wi_task_info* info_out, wi_error* error);

/* ============================================ KV store alone ============================================ */

/* For hosts that have model code of their own: give it k and v per layer, get attention back, with the same
 * segments and policies as a session, and the same slow tier (wi_runtime_params.spill_folder): sealed keys and values
 * that fast memory has no room for are there. There is no default shape: params must not be NULL. */
typedef struct wi_kv_params {
  uint32_t struct_size;
  int32_t layers;                 /* 1 to 65536 */
  int32_t query_heads;            /* 1 to 65536, a multiple of kv_heads (GQA) */
  int32_t kv_heads;               /* 1 to 65536 */
  int32_t head_dim;               /* 8 to 65536, a multiple of 8; a token takes at most 1 GiB in all layers */
  int32_t kv_type;                /* WI_KV_* */
  const wi_policy_params* policy; /* NULL: all defaults */
  uint64_t kv_budget_bytes;       /* as in wi_session_params */
} wi_kv_params;

/* Makes an empty store.
 *   params  required
 *   kv_out  out: a new handle
 * Errors: WI_E_UNSUPPORTED for an unknown policy, and on a device. Any thread. */
WI_API wi_status wi_kv_create(wi_runtime* runtime, const wi_kv_params* params, wi_kv** kv_out,
                              wi_error* error);
WI_API wi_kv* wi_kv_retain(wi_kv* kv);
WI_API void wi_kv_release(wi_kv* kv);

/* Appends tokens to one layer. Layers may be filled one after the other, as a model computes them; a token
 * belongs to the store once every layer has it.
 *   layer         in [0, layers)
 *   tokens        at most 2147483647
 *   keys, values  (tokens, kv_heads, head_dim) f32, finite; keys rotated. Rounded to kv_type
 * Errors: WI_E_ARGUMENT if a number is not finite, WI_E_UNSUPPORTED if one is beyond kv_type, naming the
 * types that hold it; WI_E_BUDGET, WI_E_BUSY; WI_E_IO if the disk of the slow tier fails; the store is as it was
 * before the call. One thread. */
WI_API wi_status wi_kv_append(wi_kv* kv, int32_t layer, uint64_t tokens, const float* keys,
                              const float* values, wi_error* error);

/* Seals what can be sealed beyond the local window, cut as a prompt of so many tokens is cut
 * (wi_policy_params.segment_tokens): short segments that earlier calls left become parts of longer ones,
 * unless a fork or a truncate came between. Nothing is sealed without this call, and until then everything is
 * attended exactly.
 * Errors: WI_E_STATE if layers have different numbers of tokens; WI_E_BUDGET, WI_E_BUSY; WI_E_IO and WI_E_FORMAT of the
 * slow tier, as wi_session_prefill; the store has the same tokens as before. One thread. */
WI_API wi_status wi_kv_seal(wi_kv* kv, wi_error* error);

/* Attention of queries over everything appended to a layer so far: softmax(q * k / sqrt(head_dim)) * v. Every
 * row sees the same tokens; causal order within a chunk is the host's (append, attend, append, attend).
 *   layer    in [0, layers)
 *   rows     at most 2147483647
 *   queries  (rows, query_heads, head_dim) f32, rotated, not scaled
 *   cancel   may be NULL
 *   out      out: (rows, query_heads, head_dim) f32, normalised; may be the queries' place. Unspecified after a failure
 *   lse_out  NULL, or out: (rows, query_heads) natural log of the sum of exponentials, for merging with
 *            attention over other tokens. Unspecified after a failure
 * Errors: WI_E_STATE if the layer is empty; WI_E_CANCELLED, WI_E_BUSY; WI_E_IO and WI_E_FORMAT of the slow tier, as
 * wi_session_prefill. One thread. */
WI_API wi_status wi_kv_attend(wi_kv* kv, int32_t layer, uint64_t rows, const float* queries,
                              wi_cancel* cancel, float* out, float* lse_out, wi_error* error);

/* As wi_session_fork. */
WI_API wi_status wi_kv_fork(wi_kv* kv, wi_kv** fork_out, wi_error* error);

/* Cuts the store back to its first `tokens` tokens, in every layer; what only some layers have goes too.
 * Errors: WI_E_ARGUMENT for more tokens than it has; WI_E_BUDGET, WI_E_BUSY; WI_E_IO and WI_E_FORMAT of the slow tier,
 * as wi_session_prefill; the store is as it was. One thread. */
WI_API wi_status wi_kv_truncate(wi_kv* kv, uint64_t tokens, wi_error* error);

/* As wi_session_get_stats, decode_steps and decode_ns of wi_kv_attend; fields about prefill, weights and prefixes
 * stay 0. */
WI_API wi_status wi_kv_get_stats(wi_kv* kv, wi_session_stats* stats_out, wi_error* error);

/* The store to a file or a callback and back, as sessions, in place too; since 0.2. Files of sessions and of stores are
 * told apart: the wrong one is WI_E_FORMAT. What params of a load leaves at zero is as saved, the shape too;
 * NULL: all of it.
 * Errors: as of sessions; of save, save_to and saved_bytes also WI_E_STATE, if layers have different numbers
 * of tokens. Threads: as of sessions. */
WI_API wi_status wi_kv_save(wi_kv* kv, const char* path, wi_cancel* cancel, wi_error* error);
WI_API wi_status wi_kv_save_to(wi_kv* kv, const wi_writer* writer, wi_cancel* cancel, wi_error* error);
WI_API wi_status wi_kv_saved_bytes(wi_kv* kv, uint64_t* bytes_out, wi_error* error);
WI_API wi_status wi_kv_load(wi_runtime* runtime, const char* path, const wi_kv_params* params,
                            wi_cancel* cancel, wi_kv** kv_out, wi_error* error);
WI_API wi_status wi_kv_load_from(wi_runtime* runtime, const wi_reader* reader, const wi_kv_params* params,
                                 wi_cancel* cancel, wi_kv** kv_out, wi_error* error);

#ifdef __cplusplus
}
#endif
#endif
