/* waveinfer.h: the whole ABI of libwaveinfer 0.1, and its manual.
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
 *     if (wi_model_open(runtime, "model.gguf", NULL, &model, &error)) return fail(&error);
 *     if (wi_session_create(model, NULL, &session, &error)) return fail(&error);
 *     if (wi_session_append_text(session, text, strlen(text), 0, NULL, NULL, &error)) return fail(&error);
 *     while (wi_session_decode(session, NULL, &event, &error) == WI_OK && event.kind == WI_EVENT_TOKEN)
 *       fwrite(event.text, 1, event.text_length, stdout);
 *     wi_session_release(session); wi_model_release(model); wi_runtime_release(runtime);
 *
 * The general rules hold for every call; a call's own text says only what is particular to it. Everything
 * here is since version 0.1.
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
 *   next. Fields named reserved must be zero.
 * Errors. Calls return a wi_status, WI_OK or what went wrong, and fill a wi_error if one is given. After a
 *   failure outputs and objects are as they were before the call, unless the call says otherwise, and the
 *   next call works. No exception, abort or exit crosses the boundary. There is no thread-local last
 *   error, so it does not matter on which thread a host looks at one. Any call that can fail may return
 *   WI_E_ARGUMENT (a NULL handle or output, a value out of range; the message names it and its value),
 *   WI_E_MEMORY or WI_E_INTERNAL; a call's own text lists the rest.
 * Ownership. Handles are reference-counted: create, open, fork and load return a handle with one reference
 *   that is the caller's, retain adds one and returns its argument, release takes one away. retain and
 *   release accept NULL and may be called from any thread. What is made from a handle keeps it alive by
 *   itself: a runtime, a model and its sessions may be released in any order. Nobody may be inside a call
 *   with a handle whose last reference is released. Memory passed in is the caller's and is not used after
 *   the call returns; memory passed out says whose it is.
 * Threads. Runtimes, models and cancel tokens may be used from any number of threads at once. A session
 *   and a KV store are used by one thread at a time, not always the same one: a call that finds another
 *   one inside returns WI_E_BUSY and changes nothing. Statistics may be read from any thread at any time.
 *   Work is spread over the runtime's own threads; the host's are left alone. Different sessions of one
 *   runtime may run at once and share its threads.
 * Signals. The library handles none. During a prefill a thread may keep signals to itself for a few
 *   milliseconds at a time, but those that its own instructions raise; its mask is then what it was.
 * Callbacks run on the calling thread, during the call they are given to; only the log's may come from
 *   elsewhere. They must not throw or unwind, and must not use the object that the call is on, except for
 *   its statistics.
 * Cancellation. A wi_cancel that fires makes the calls it was given to return WI_E_CANCELLED: within 100
 *   ms in a prefill, within one layer in a decode step. The object is as it was before the call. NULL:
 *   cannot be cancelled.
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

#if defined(__GNUC__)
#define WI_API __attribute__((visibility("default")))
#else
#define WI_API
#endif

/* Version of this header. Within one ABI version programs go on working without a rebuild. */
#define WI_ABI_VERSION 1u
#define WI_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* ============================================ Status ============================================ */

typedef int32_t wi_status;
enum {
  WI_OK = 0,
  WI_E_ARGUMENT = 1,     /* an argument is wrong; the message names it and its value */
  WI_E_FORMAT = 2,       /* a file is broken; the message names the field and the byte offset */
  WI_E_UNSUPPORTED = 3,  /* well-formed, but not something this build can do; the message names it */
  WI_E_IO = 4,           /* the system refused a file operation; native_code is errno */
  WI_E_MEMORY = 5,       /* the system refused memory */
  WI_E_BUDGET = 6,       /* a byte budget of the runtime or the session would be exceeded */
  WI_E_CANCELLED = 7,    /* the cancel token fired */
  WI_E_BUSY = 8,         /* another thread is inside this session or KV store */
  WI_E_STATE = 9,        /* the call does not fit the object's state, e.g. decode of an empty session */
  WI_E_MISMATCH = 10,    /* a session file that was saved with another model or other parameters */
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

typedef struct wi_runtime wi_runtime; /* threads, memory budget, log; one per program is usual */
typedef struct wi_model wi_model;     /* weights, tokenizer, hyper-parameters; immutable */
typedef struct wi_session wi_session; /* one token sequence with its KV cache and its sampler */
typedef struct wi_cancel wi_cancel;   /* a flag that ends long calls */
typedef struct wi_kv wi_kv;           /* a KV cache alone, for hosts with model code of their own */

/* ============================================ Callbacks ============================================ */

/* message: UTF-8, NUL-terminated, one line, valid during the callback. Comes from any thread that is inside a
 * call or from one of the runtime's own, and may come from several at once. */
typedef void (*wi_log_callback)(void* user, int32_t level, const char* message);

/* done grows up to total. Units are those of the call it is given to. */
typedef void (*wi_progress_callback)(void* user, uint64_t done, uint64_t total);

enum {
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

enum { WI_HUGE_PAGES_AUTO = 0, WI_HUGE_PAGES_OFF = 1 };
enum { WI_BIND_AUTO = 0, WI_BIND_OFF = 1 };

typedef struct wi_runtime_params {
  uint32_t struct_size;
  /* Threads that work, 0 to 1024. 0: the physical cores this process may use, by its CPU set and the quota of
   * its control groups. */
  int32_t threads;
  /* NUL-terminated. NULL or "cpu"; anything else is WI_E_UNSUPPORTED in this version. */
  const char* device;
  /* Most bytes that KV, indexes and tails of all sessions and KV stores together may take; weights and
   * scratch do not count. 0: 80 % of the memory this process may use. */
  uint64_t kv_budget_bytes;
  int32_t huge_pages;   /* WI_HUGE_PAGES_*. AUTO: ask the system for them, for large pieces of KV and copied
                           weights */
  int32_t bind_threads; /* WI_BIND_*. AUTO: pin the runtime's threads to cores on machines of several NUMA
                           nodes */
  int32_t log_level;    /* WI_LOG_*: nothing above it is logged. 0: WI_LOG_WARNING */
  int32_t reserved;
  wi_log_callback log; /* NULL: no log */
  void* log_user;      /* first argument of log; must live as long as all that is made of the runtime */
} wi_runtime_params;

typedef struct wi_device_info {
  uint32_t struct_size;
  int32_t threads;       /* that the runtime works with */
  char name[64];         /* "cpu" */
  char description[128]; /* the processor's own name */
  char simd[32];         /* instruction set that the kernels chose, e.g. "AVX3" */
  int32_t cores;         /* physical cores this process may use */
  int32_t numa_nodes;    /* with at least one of them */
  uint64_t memory_bytes; /* this process may use: the smaller of the machine's and its control groups' */
  uint64_t l2_bytes;     /* per core; 0: unknown */
  uint64_t l3_bytes;     /* per group of cores; 0: unknown */
} wi_device_info;

typedef struct wi_runtime_stats {
  uint32_t struct_size;
  int32_t sessions;             /* alive now */
  uint64_t kv_budget_bytes;     /* in force */
  uint64_t kv_bytes;            /* KV, index and tail bytes now; what sessions share counts once */
  uint64_t kv_bytes_peak;       /* most since creation */
  uint64_t scratch_bytes;       /* workspaces of prefill and decode, kept for the next step */
  uint64_t prefix_hits;         /* segments taken over from another session instead of being computed */
  uint64_t copied_weight_bytes; /* of models that were opened with WI_WEIGHTS_COPIED and live */
} wi_runtime_stats;

/* Makes a runtime: reads the machine's topology, starts threads, allocates nothing large.
 *   params       NULL: all defaults
 *   runtime_out  out: a new handle
 * Errors: WI_E_UNSUPPORTED for an unknown device. Thread-safe. */
WI_API wi_status wi_runtime_create(const wi_runtime_params* params, wi_runtime** runtime_out,
                                   wi_error* error);
WI_API wi_runtime* wi_runtime_retain(wi_runtime* runtime);
WI_API void wi_runtime_release(wi_runtime* runtime);

/* What the runtime runs on. Any thread. */
WI_API wi_status wi_runtime_device_info(wi_runtime* runtime, wi_device_info* info_out, wi_error* error);

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

/* Makes a token usable again. NULL is ignored. Any thread; best when no call is using it. */
WI_API void wi_cancel_reset(wi_cancel* cancel);

/* ============================================ Model ============================================ */

/* How prefill multiplies by weights, keys and values narrower than f32. FAST: in bf16 with f32 sums where the
 * processor has instructions for it (AVX512_BF16, AMX), as inference servers do; logits are off by 1 or 2 %
 * of their spread. F32: everything in f32; half as fast, a third where there is AMX. HIGH: where there is
 * AMX, each number as the sum of two bf16 numbers, 16 significant bits, which moves logits by less than
 * storing keys and values in f16 does; half as fast as FAST, two thirds with weights in bf16. Elsewhere it is
 * F32. Decoding is always in f32, and f32 weights too. */
enum { WI_PRECISION_FAST = 0, WI_PRECISION_F32 = 1, WI_PRECISION_HIGH = 2 };

/* Where weights lie while the model lives. MAPPED: in the file, which must not change so long: one that is
 * cut short or whose disk goes away ends the process with SIGBUS. Opening reads next to nothing, processes
 * that map the same file share its memory, and the system takes it back under pressure. COPIED: in memory of
 * this process alone, on huge pages where allowed, until the model and its sessions are released. Opening
 * reads the whole file, on the calling thread, and closes it; what becomes of it then does not matter, and
 * decode steps that wait for weights take 5 to 10 % less. Neither counts against kv_budget_bytes. */
enum { WI_WEIGHTS_MAPPED = 0, WI_WEIGHTS_COPIED = 1 };

typedef struct wi_model_params {
  uint32_t struct_size;
  int32_t precision;             /* WI_PRECISION_*; of all sessions of this model */
  wi_progress_callback progress; /* NULL, or: bytes of the weights looked at or copied, bytes in all */
  void* progress_user;           /* its first argument */
  int32_t weights;               /* WI_WEIGHTS_* */
  int32_t reserved;
} wi_model_params;

typedef struct wi_model_info {
  uint32_t struct_size;
  int32_t layers;
  int32_t hidden;      /* width of the residual stream */
  int32_t query_heads; /* a multiple of kv_heads */
  int32_t kv_heads;
  int32_t head_dim;
  int32_t ffn;                 /* width of the feed-forward block */
  int32_t vocab;               /* token ids are in [0, vocab) */
  int32_t bos_token;           /* -1: none */
  int32_t eos_token;           /* -1: none; wi_event.kind knows every token that ends an answer */
  uint64_t max_positions;      /* the model was made for at most so many tokens; not enforced */
  uint64_t parameters;         /* weights, counted */
  uint64_t weight_bytes;       /* as stored in the file */
  uint64_t kv_bytes_per_token; /* all layers, with f16 KV, without index */
  char architecture[32];       /* "llama", "qwen2" or "qwen3" */
  char name[64];               /* as the file calls it; may be empty */
  char weight_type[16];        /* of most weight bytes: "f16", "q8_0", "q4_k" and so on */
  char chat_family[32];        /* "chatml", "llama3" and so on; empty: no template that this library knows */
} wi_model_info;

/* Flags of tokenize and append_text. */
enum {
  WI_TOKENIZE_ADD_BOS = 1,      /* put the beginning-of-sequence token first, if the model has one */
  WI_TOKENIZE_PARSE_SPECIAL = 2 /* text like <|end|> becomes that control token; else it is text */
};
/* Flags of detokenize. */
enum { WI_DETOKENIZE_KEEP_SPECIAL = 1 }; /* write control tokens as their names; else they are left out */
/* Flags of chat_render. */
enum { WI_CHAT_ADD_GENERATION_PROMPT = 1 }; /* end with the opening of the assistant's answer */

typedef struct wi_chat_message {
  uint32_t struct_size;
  int32_t reserved;
  const char* role;        /* NUL-terminated: "system", "user" or "assistant" */
  const char* content;     /* NULL only if content_length is 0 */
  uint64_t content_length; /* bytes */
} wi_chat_message;

/* Opens a model: a .gguf file (of a split set, the first) or a directory with config.json, tokenizer.json and
 * *.safetensors. Architectures llama, qwen2 and qwen3; weights f32, f16, bf16, q8_0, q4_0, q4_K, q5_K, q6_K.
 * The file must not change during the call, and if weights stay mapped, while the model lives.
 *   runtime    whose threads and budget the model's sessions use
 *   path       NUL-terminated
 *   params     NULL: all defaults, no progress
 *   model_out  out: a new handle
 * Errors: WI_E_IO; WI_E_FORMAT for a broken file; WI_E_UNSUPPORTED for an architecture, weight type,
 * tokenizer or RoPE scaling that is unknown, by name; WI_E_MEMORY if a copy of the weights, with those that
 * other models hold, is more than this process may use. Thread-safe. */
WI_API wi_status wi_model_open(wi_runtime* runtime, const char* path, const wi_model_params* params,
                               wi_model** model_out, wi_error* error);
WI_API wi_model* wi_model_retain(wi_model* model);
WI_API void wi_model_release(wi_model* model);

/* The model's hyper-parameters. Any thread. */
WI_API wi_status wi_model_get_info(wi_model* model, wi_model_info* info_out, wi_error* error);

/* Text to token ids.
 *   text, length  bytes; NULL only if length is 0
 *   flags         WI_TOKENIZE_*, or-ed
 *   tokens        out: (capacity) ids, or NULL with capacity 0
 *   count_out     out: ids that the text has
 * Errors: none of its own. Any thread. */
WI_API wi_status wi_model_tokenize(wi_model* model, const char* text, uint64_t length, uint32_t flags,
                                   int32_t* tokens, uint64_t capacity, uint64_t* count_out, wi_error* error);

/* Token ids to text, the exact inverse of tokenize. Part of a sequence may end within a code point.
 *   tokens, count  ids in [0, vocab)
 *   flags          WI_DETOKENIZE_*
 *   text           out: (capacity) bytes, not NUL-terminated, or NULL with capacity 0
 *   length_out     out: bytes that the text has
 * Errors: none of its own. Any thread. */
WI_API wi_status wi_model_detokenize(wi_model* model, const int32_t* tokens, uint64_t count, uint32_t flags,
                                     char* text, uint64_t capacity, uint64_t* length_out, wi_error* error);

/* Renders a conversation as the text that the model was trained on. BOS is part of it where the template has
 * it, so tokenize the result with WI_TOKENIZE_PARSE_SPECIAL and without WI_TOKENIZE_ADD_BOS.
 *   messages, count  in order, oldest first
 *   flags            WI_CHAT_*
 *   text             out: (capacity) bytes, not NUL-terminated, or NULL with capacity 0
 *   length_out       out: bytes that the text has
 * Errors: WI_E_UNSUPPORTED if the model's template is of no family this library knows (wi_model_info's
 * chat_family is empty): pass a ready prompt instead. WI_E_ARGUMENT for a role or an order of roles that the
 * template does not have. Any thread. */
WI_API wi_status wi_model_chat_render(wi_model* model, const wi_chat_message* messages, uint64_t count,
                                      uint32_t flags, char* text, uint64_t capacity, uint64_t* length_out,
                                      wi_error* error);

/* ============================================ Policy ============================================ */

/* Type of stored keys and values. Scores, sums and merges are f32 with all of them. */
enum { WI_KV_F16 = 0, WI_KV_BF16 = 1, WI_KV_F32 = 2 };

/* How the past is indexed and what a query reads of it. A sequence is its first 4 tokens, sealed segments,
 * and the recent tokens. The first and the recent ones are attended exactly (steady zone). A segment's keys
 * are clustered per layer and KV head; a query ranks all clusters, reads the best exactly (retrieval zone),
 * takes the next through centroid, size and value sum (estimation zone), and drops the rest, counted in the
 * statistics. RetroInfer section 4.2; the defaults are those of section 5.1. Under "full" nothing is
 * clustered and every token is read. Two more are there to be compared with: "streaming" reads the newest
 * indexed tokens that budget pays for (StreamingLLM), "blocks" the pages of 16 consecutive tokens whose keys
 * may score highest by their bounds (Quest); neither estimates anything. Fields that a policy does not use
 * are checked all the same. */
typedef struct wi_policy_params {
  uint32_t struct_size;
  /* Tokens per segment while a prompt is read: a multiple of 64 in [64, 1048576]. 0: 8192 */
  int32_t segment_tokens;
  /* NUL-terminated: "wave", "full", "streaming" or "blocks". NULL: "wave". Others are WI_E_UNSUPPORTED */
  const char* name;
  /* Tokens per segment while decoding, and of what a prompt leaves over; range as above. 0: 1024 (5.5) */
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
  float budget_floor;   /* with target_mass: at least this share, in (0, budget_ceiling]. 0: budget / 8 */
  float budget_ceiling; /* with target_mass: at most this share, in (0, 1]. 0: budget * 4, at most 1 */
  /* Under "wave": where the newest tokens, at least three of them, stood before, the clusters of what came
   * then are read whatever their rank, from at most half of the budget. So many such places, at most 8, the
   * longest repeats. Not in RetroInfer. 0: 2; negative: none */
  int32_t repeats;
} wi_policy_params;

/* ============================================ Session ============================================ */

/* How decode picks a token from the logits: penalty, temperature, top_k, min_p, top_p, in this order.
 * Deterministic: the same seed and the same logits give the same tokens. */
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
} wi_sampling_params;

enum { WI_PREFIX_REUSE_AUTO = 0, WI_PREFIX_REUSE_OFF = 1 };

typedef struct wi_session_params {
  uint32_t struct_size;
  int32_t kv_type;                    /* WI_KV_* */
  const wi_policy_params* policy;     /* NULL: all defaults */
  const wi_sampling_params* sampling; /* NULL: greedy; in wi_session_load: as saved */
  /* Most bytes of this session's KV and index, shared segments included. 0: only the runtime's counts */
  uint64_t kv_budget_bytes;
  /* Chunks of at most so many tokens, appended to a past that has segments, read it through the policy as a
   * decode step does, so that the answer to a short question starts within a few steps' time. 0: every
   * appended token attends exactly to everything before it */
  int32_t sparse_read_tokens;
  /* WI_PREFIX_REUSE_*. AUTO: a prompt that starts as another living session's did, with the same model and
   * parameters, takes over its sealed segments instead of computing them */
  int32_t prefix_reuse;
} wi_session_params;

typedef struct wi_memory_plan {
  uint32_t struct_size;
  /* 1: kv, index and sealing fit the budgets, and everything the memory this process may use; else 0 */
  int32_t fits;
  uint64_t weight_bytes;  /* if mapped, shared with other processes and taken back under pressure */
  uint64_t kv_bytes;      /* keys and values */
  uint64_t index_bytes;   /* at most */
  uint64_t sealing_bytes; /* most that is needed besides while a segment is being built */
  uint64_t scratch_bytes; /* activations, estimated; shared by the runtime's sessions that take turns */
  uint64_t total_bytes;   /* sum of these */
  uint64_t max_tokens;    /* most tokens that fit the budgets if this session has the runtime's to itself */
} wi_memory_plan;

enum {
  WI_EVENT_TOKEN = 0,
  WI_EVENT_END = 1 /* the token ends the answer; text holds at most what an incomplete code point left over */
};

typedef struct wi_event {
  uint32_t struct_size;
  int32_t kind;  /* WI_EVENT_* */
  int32_t token; /* its id, in [0, vocab) */
  int32_t reserved;
  /* UTF-8, whole code points, U+FFFD for what can never become one; not NUL-terminated, never NULL. Owned by
   * the session, valid until the next call on it or its release. */
  const char* text;
  uint64_t text_length; /* bytes; 0 while a code point is incomplete, and for control tokens */
} wi_event;

typedef struct wi_prefill_params {
  uint32_t struct_size;
  int32_t chunk_tokens;          /* tokens computed at once, at most 1048576. 0: chosen by the library */
  wi_progress_callback progress; /* NULL, or: tokens done, tokens in this call; after each chunk */
  void* progress_user;           /* its first argument */
  /* NULL, or out: logits of every token of this call, (tokens, vocab). Unspecified after a failure */
  float* logits;
  uint64_t logits_capacity; /* floats, at least tokens * vocab; 0 if logits is NULL */
} wi_prefill_params;

/* Sums are over the session's life; a fork starts from zero. */
typedef struct wi_session_stats {
  uint32_t struct_size;
  int32_t segments;            /* sealed */
  uint64_t tokens;             /* in the session, the pending one included */
  uint64_t kv_bytes;           /* held: keys, values and index, shared segments included */
  uint64_t index_bytes;        /* of them */
  uint64_t prefill_tokens;     /* given to prefill and append_text */
  uint64_t decode_steps;       /* of a wi_kv: calls of attend */
  uint64_t prefix_tokens;      /* of prefill_tokens: taken over from other sessions instead of computed */
  uint64_t kv_bytes_read;      /* by decode steps: keys, values and index */
  uint64_t index_bytes_read;   /* of them */
  uint64_t retrieved_tokens;   /* read from segments exactly; summed over steps, layers and KV heads */
  uint64_t estimated_clusters; /* likewise */
  uint64_t dropped_clusters;   /* ranked, but neither read nor estimated; likewise */
  uint64_t buffer_hits;        /* partitions found in the fast tier; likewise */
  uint64_t buffer_misses;      /* partitions that had to be brought there; likewise */
  uint64_t prefill_ns;
  uint64_t index_ns; /* of prefill_ns and decode_ns: sealing segments */
  uint64_t decode_ns;
  uint64_t weights_ns;  /* of decode_ns: everything but attention, mostly products with weights */
  uint64_t select_ns;   /* of decode_ns: ranking clusters */
  uint64_t retrieve_ns; /* of decode_ns: bringing them to the fast tier */
  uint64_t attend_ns;   /* of decode_ns: exact attention */
  uint64_t estimate_ns; /* of decode_ns: the estimation zone */
  /* Share of the attention mass that was covered exactly, mean over steps, layers and heads (of the query
   * heads that share a KV head one a step, in turns); 1 before the first such step. The estimate takes each
   * cluster that was not read by its centroid and by how far its keys spread about it (at the centroid alone,
   * section 4.2, a cluster's mass is only bounded from below); the certified value an upper bound from its
   * radius, and is thus a lower bound of the true share. */
  double estimated_coverage;
  double certified_coverage;
  double certified_coverage_min; /* over steps, layers and heads */
} wi_session_stats;

/* What a session of so many tokens would take, without making one.
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
 * segments are sealed on the way. Calling it in pieces gives the same as calling it once.
 *   tokens, count  ids in [0, vocab); count 0 does nothing
 *   params         NULL: all defaults
 *   cancel         may be NULL
 * Errors: WI_E_BUDGET, WI_E_CANCELLED, WI_E_BUSY; the session is as it was before the call. One thread. */
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
 * Errors: WI_E_STATE if the session is empty; WI_E_BUDGET, WI_E_CANCELLED, WI_E_BUSY; no token is lost and
 * none is added. One thread. */
WI_API wi_status wi_session_decode(wi_session* session, wi_cancel* cancel, wi_event* event_out,
                                   wi_error* error);

/* Logits of the last token, those that decode would sample from; computes them first if it is pending. For
 * hosts with a sampler of their own: logits, pick, prefill of the one token picked.
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
 *   params    as for wi_session_create; without sampling the sampler goes on where it is
 *   cancel    may be NULL
 *   fork_out  out: a new handle
 * Errors: WI_E_ARGUMENT if kv_type is not the session's; WI_E_UNSUPPORTED for an unknown policy; WI_E_BUDGET,
 * WI_E_CANCELLED, WI_E_BUSY. One thread. */
WI_API wi_status wi_session_fork_as(wi_session* session, const wi_session_params* params, wi_cancel* cancel,
                                    wi_session** fork_out, wi_error* error);

/* Cuts the session back to its first `tokens` tokens. The new last one is pending: its logits are computed by
 * the next call that needs them. A segment that is cut becomes recent tokens again.
 *   tokens  at most the session's
 * Errors: WI_E_BUDGET (a cut segment that others share is copied), WI_E_BUSY. One thread. */
WI_API wi_status wi_session_truncate(wi_session* session, uint64_t tokens, wi_error* error);

/* Writes the session to a file: tokens, KV, index, sampler. Atomic: a temporary file beside it, synced, then
 * renamed; an older file at path survives any failure. Checksummed.
 *   path    NUL-terminated
 *   cancel  may be NULL
 * Errors: WI_E_IO, WI_E_CANCELLED, WI_E_BUSY. One thread. */
WI_API wi_status wi_session_save(wi_session* session, const char* path, wi_cancel* cancel, wi_error* error);

/* Reads a session back. The model, the KV type and the policy with its parameters must be those it was saved
 * with; budgets, sparse_read_tokens and prefix_reuse are free.
 *   path         NUL-terminated
 *   params       as for wi_session_create; without sampling the saved sampler goes on where it was
 *   session_out  out: a new handle
 * Errors: WI_E_IO; WI_E_FORMAT for a damaged or truncated file or one of an unknown version; WI_E_MISMATCH
 * for another model or other parameters; WI_E_BUDGET. Any thread. */
WI_API wi_status wi_session_load(wi_model* model, const char* path, const wi_session_params* params,
                                 wi_session** session_out, wi_error* error);

/* Replaces the sampling parameters and starts their random numbers anew from seed.
 *   sampling  NULL: greedy
 * Errors: WI_E_BUSY. One thread. */
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
 * Errors: as wi_session_decode, for the batch as a whole: if one session fails, no session changes. WI_E_BUSY
 * if any session is in use. */
WI_API wi_status wi_batch_decode(wi_session* const* sessions, uint64_t count, wi_cancel* cancel,
                                 wi_event* events_out, wi_error* error);

/* ============================================ KV store alone ============================================ */

/* For hosts that have model code of their own: give it k and v per layer, get attention back, with the same
 * segments and policies as a session. There is no default shape: params must not be NULL. */
typedef struct wi_kv_params {
  uint32_t struct_size;
  int32_t layers;                 /* 1 to 65536 */
  int32_t query_heads;            /* 1 to 65536, a multiple of kv_heads (GQA) */
  int32_t kv_heads;               /* 1 to 65536 */
  int32_t head_dim;               /* 1 to 65536; a token takes at most 1 GiB in all layers */
  int32_t kv_type;                /* WI_KV_* */
  const wi_policy_params* policy; /* NULL: all defaults */
  uint64_t kv_budget_bytes;       /* as in wi_session_params */
} wi_kv_params;

/* Makes an empty store.
 *   params  required
 *   kv_out  out: a new handle
 * Errors: WI_E_UNSUPPORTED for an unknown policy. Any thread. */
WI_API wi_status wi_kv_create(wi_runtime* runtime, const wi_kv_params* params, wi_kv** kv_out,
                              wi_error* error);
WI_API wi_kv* wi_kv_retain(wi_kv* kv);
WI_API void wi_kv_release(wi_kv* kv);

/* Appends tokens to one layer. Layers may be filled one after the other, as a model computes them; a token
 * belongs to the store once every layer has it.
 *   layer         in [0, layers)
 *   tokens        at most 2147483647
 *   keys, values  (tokens, kv_heads, head_dim) f32, finite; keys rotated. Rounded to kv_type
 * Errors: WI_E_BUDGET, WI_E_BUSY. One thread. */
WI_API wi_status wi_kv_append(wi_kv* kv, int32_t layer, uint64_t tokens, const float* keys,
                              const float* values, wi_error* error);

/* Seals what can be sealed: whole segments, then whole decode segments, beyond the local window. Nothing is
 * sealed without this call, and until then everything is attended exactly.
 * Errors: WI_E_STATE if layers have different numbers of tokens; WI_E_BUDGET, WI_E_BUSY. One thread. */
WI_API wi_status wi_kv_seal(wi_kv* kv, wi_error* error);

/* Attention of queries over everything appended to a layer so far: softmax(q * k / sqrt(head_dim)) * v. Every
 * row sees the same tokens; causal order within a chunk is the host's (append, attend, append, attend).
 *   layer    in [0, layers)
 *   rows     at most 2147483647
 *   queries  (rows, query_heads, head_dim) f32, rotated, not scaled
 *   cancel   may be NULL
 *   out      out: (rows, query_heads, head_dim) f32, normalised. Unspecified after a failure
 *   lse_out  NULL, or out: (rows, query_heads) natural log of the sum of exponentials, for merging with
 *            attention over other tokens. Unspecified after a failure
 * Errors: WI_E_STATE if the layer is empty; WI_E_CANCELLED, WI_E_BUSY. One thread. */
WI_API wi_status wi_kv_attend(wi_kv* kv, int32_t layer, uint64_t rows, const float* queries,
                              wi_cancel* cancel, float* out, float* lse_out, wi_error* error);

/* As wi_session_fork. */
WI_API wi_status wi_kv_fork(wi_kv* kv, wi_kv** fork_out, wi_error* error);

/* Cuts the store back to its first `tokens` tokens, in every layer; what only some layers have goes too.
 * Errors: WI_E_ARGUMENT for more tokens than it has; WI_E_BUDGET, WI_E_BUSY. One thread. */
WI_API wi_status wi_kv_truncate(wi_kv* kv, uint64_t tokens, wi_error* error);

/* As wi_session_get_stats; fields about prefill, weights and prefixes stay 0. */
WI_API wi_status wi_kv_get_stats(wi_kv* kv, wi_session_stats* stats_out, wi_error* error);

#ifdef __cplusplus
}
#endif
#endif
