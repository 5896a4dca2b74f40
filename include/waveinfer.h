/* waveinfer.h: the whole ABI of libwaveinfer and its reference documentation.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef WAVEINFER_H
#define WAVEINFER_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define WI_API __attribute__((visibility("default")))
#else
#define WI_API
#endif

#define WI_ABI_VERSION 1u
#define WI_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ---- */
typedef int32_t wi_status;
enum {
  WI_OK = 0,
  WI_E_ARGUMENT = 1,    /* an argument is wrong; the message names it and its value */
  WI_E_FORMAT = 2,      /* a file is broken; the message names the field and the byte offset */
  WI_E_UNSUPPORTED = 3, /* well-formed, but not something this build can do; the message names it */
  WI_E_IO = 4,          /* the system refused a file operation; native_code is errno */
  WI_E_MEMORY = 5,      /* the system refused memory */
  WI_E_BUDGET = 6,      /* a byte budget of the runtime or the session would be exceeded */
  WI_E_CANCELLED = 7,   /* the cancel token fired */
  WI_E_BUSY = 8,        /* another thread is inside this session */
  WI_E_STATE = 9,       /* the call does not fit the object's state, e.g. decode of an empty session */
  WI_E_MISMATCH = 10,   /* a session file that was saved with another model or other parameters */
  WI_E_DEVICE = 11,     /* a device call failed; native_code is the driver's */
  WI_E_DEVICE_LOST = 12,/* a sticky device fault: this runtime is unusable, the process is not */
  WI_E_INTERNAL = 13    /* a bug in this library */
};

typedef struct wi_error {
  uint32_t struct_size;
  wi_status code;
  int64_t native_code; /* errno or a driver's code, 0 if none */
  char message[512];   /* UTF-8, NUL-terminated, cut at a code point */
} wi_error;

/* ---- Handles ---- */
typedef struct wi_runtime wi_runtime;
typedef struct wi_model wi_model;
typedef struct wi_session wi_session;
typedef struct wi_cancel wi_cancel;
typedef struct wi_kv wi_kv;

/* ---- Callbacks ---- */
typedef void (*wi_log_callback)(void* user, int32_t level, const char* message);
typedef void (*wi_progress_callback)(void* user, uint64_t done, uint64_t total);
enum { WI_LOG_NONE = 0, WI_LOG_ERROR = 1, WI_LOG_WARNING = 2, WI_LOG_INFO = 3, WI_LOG_DEBUG = 4 };

/* ---- Version ---- */
WI_API uint32_t wi_abi_version(void);
WI_API const char* wi_version(void);
WI_API const char* wi_status_name(wi_status status);

/* ---- Runtime ---- */
enum { WI_HUGE_PAGES_AUTO = 0, WI_HUGE_PAGES_OFF = 1 };
enum { WI_BIND_AUTO = 0, WI_BIND_OFF = 1 };

typedef struct wi_runtime_params {
  uint32_t struct_size;
  int32_t threads;          /* 0: every core this process may use (affinity mask and cgroup quota) */
  const char* device;       /* NULL or "cpu" */
  uint64_t kv_budget_bytes; /* all KV and index bytes of this runtime; 0: 80 % of the memory limit */
  int32_t huge_pages;       /* WI_HUGE_PAGES_* */
  int32_t bind_threads;     /* WI_BIND_* */
  int32_t log_level;        /* WI_LOG_*; 0 with a callback: WI_LOG_WARNING */
  int32_t reserved;
  wi_log_callback log;      /* may be NULL */
  void* log_user;
} wi_runtime_params;

typedef struct wi_device_info {
  uint32_t struct_size;
  int32_t threads;
  char name[64];           /* "cpu" */
  char description[128];   /* processor's own name */
  char simd[32];           /* instruction set the kernels chose, e.g. "AVX3" */
  int32_t cores;           /* physical cores this process may use */
  int32_t numa_nodes;
  uint64_t memory_bytes;   /* memory this process may use: the smaller of the machine's and the cgroup's */
  uint64_t l2_bytes;       /* per core */
  uint64_t l3_bytes;       /* per group of cores */
} wi_device_info;

typedef struct wi_runtime_stats {
  uint32_t struct_size;
  int32_t sessions;           /* alive */
  uint64_t kv_budget_bytes;
  uint64_t kv_bytes;          /* KV, index and tail bytes now, shared segments counted once */
  uint64_t kv_bytes_peak;
  uint64_t scratch_bytes;     /* workspaces of prefill and decode */
  uint64_t prefix_hits;       /* segments taken from another session instead of being computed */
} wi_runtime_stats;

WI_API wi_status wi_runtime_create(const wi_runtime_params* params, wi_runtime** runtime_out, wi_error* error);
WI_API wi_runtime* wi_runtime_retain(wi_runtime* runtime);
WI_API void wi_runtime_release(wi_runtime* runtime);
WI_API wi_status wi_runtime_device_info(wi_runtime* runtime, wi_device_info* info_out, wi_error* error);
WI_API wi_status wi_runtime_get_stats(wi_runtime* runtime, wi_runtime_stats* stats_out, wi_error* error);

/* ---- Cancel ---- */
WI_API wi_status wi_cancel_create(wi_cancel** cancel_out, wi_error* error);
WI_API wi_cancel* wi_cancel_retain(wi_cancel* cancel);
WI_API void wi_cancel_release(wi_cancel* cancel);
WI_API void wi_cancel_trigger(wi_cancel* cancel);
WI_API void wi_cancel_reset(wi_cancel* cancel);

/* ---- Model ---- */
typedef struct wi_model_params {
  uint32_t struct_size;
  int32_t reserved;
  wi_progress_callback progress; /* bytes checked, bytes in all; on the calling thread */
  void* progress_user;
} wi_model_params;

typedef struct wi_model_info {
  uint32_t struct_size;
  int32_t layers;
  int32_t hidden;
  int32_t query_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t ffn;
  int32_t vocab;
  int32_t bos_token; /* -1 if the model has none */
  int32_t eos_token; /* -1 if the model has none */
  uint64_t max_positions;
  uint64_t parameters;
  uint64_t weight_bytes;
  uint64_t kv_bytes_per_token; /* with f16 KV, without index */
  char architecture[32];       /* "llama", "qwen2", "qwen3" */
  char name[64];
  char weight_type[16];        /* type of most weights, e.g. "q8_0" */
  char chat_family[32];        /* "chatml", …; empty: no template this library knows */
} wi_model_info;

enum { WI_TOKENIZE_ADD_BOS = 1, WI_TOKENIZE_PARSE_SPECIAL = 2 };
enum { WI_DETOKENIZE_KEEP_SPECIAL = 1 };
enum { WI_CHAT_ADD_GENERATION_PROMPT = 1 };

typedef struct wi_chat_message {
  uint32_t struct_size;
  int32_t reserved;
  const char* role; /* NUL-terminated: "system", "user", "assistant" */
  const char* content;
  uint64_t content_length;
} wi_chat_message;

WI_API wi_status wi_model_open(wi_runtime* runtime, const char* path, const wi_model_params* params, wi_model** model_out, wi_error* error);
WI_API wi_model* wi_model_retain(wi_model* model);
WI_API void wi_model_release(wi_model* model);
WI_API wi_status wi_model_get_info(wi_model* model, wi_model_info* info_out, wi_error* error);
WI_API wi_status wi_model_tokenize(wi_model* model, const char* text, uint64_t length, uint32_t flags, int32_t* tokens, uint64_t capacity, uint64_t* count_out, wi_error* error);
WI_API wi_status wi_model_detokenize(wi_model* model, const int32_t* tokens, uint64_t count, uint32_t flags, char* text, uint64_t capacity, uint64_t* length_out, wi_error* error);
WI_API wi_status wi_model_chat_render(wi_model* model, const wi_chat_message* messages, uint64_t count, uint32_t flags, char* text, uint64_t capacity, uint64_t* length_out, wi_error* error);

/* ---- Policy: how sealed segments are indexed and what a query reads of them ---- */
enum { WI_KV_F16 = 0, WI_KV_BF16 = 1, WI_KV_F32 = 2 };

typedef struct wi_policy_params {
  uint32_t struct_size;
  int32_t segment_tokens;        /* tokens sealed at once in prefill; 0: 8192 */
  const char* name;              /* "full" or "wave"; NULL: "wave" */
  int32_t decode_segment_tokens; /* tokens sealed at once while decoding; 0: 1024 */
  int32_t tokens_per_centroid;   /* 0: 16 */
  int32_t kmeans_iterations;     /* 0: 10 */
  int32_t local_window;          /* most recent tokens, always exact; 0: 64 */
  float budget;                  /* share of indexed tokens read exactly; 0: 0.018; 1: all */
  float estimation;              /* share of clusters estimated; 0: 0.232; negative: none */
  float target_mass;             /* in (0, 1): retrieve until this share of the attention mass is covered; 0: fixed budget */
  float budget_floor;            /* with target_mass: at least this share; 0: budget / 8 */
  float budget_ceiling;          /* with target_mass: at most this share; 0: budget * 4 */
  int32_t reserved;
} wi_policy_params;

/* ---- Session ---- */
typedef struct wi_sampling_params {
  uint32_t struct_size;
  float temperature;        /* 0: greedy */
  int32_t top_k;            /* 0: all */
  float top_p;              /* 0 or 1: all */
  float min_p;              /* 0: off */
  float repetition_penalty; /* 0 or 1: off */
  int32_t repetition_window;/* tokens looked back; 0: 64 */
  int32_t reserved;
  uint64_t seed;
} wi_sampling_params;

enum { WI_PREFIX_REUSE_AUTO = 0, WI_PREFIX_REUSE_OFF = 1 };

typedef struct wi_session_params {
  uint32_t struct_size;
  int32_t kv_type;                 /* WI_KV_* */
  const wi_policy_params* policy;  /* NULL: defaults; copied */
  const wi_sampling_params* sampling; /* NULL: greedy; copied */
  uint64_t kv_budget_bytes;        /* this session's KV and index; 0: the runtime's budget alone */
  int32_t sparse_read_tokens;      /* appended chunks of at most this many tokens read the past through the policy; 0: exact always */
  int32_t prefix_reuse;            /* WI_PREFIX_REUSE_* */
} wi_session_params;

typedef struct wi_memory_plan {
  uint32_t struct_size;
  int32_t fits;            /* 1 if kv + index fit the runtime's budget and all of it the machine's memory */
  uint64_t weight_bytes;   /* mapped from the file, shared with other processes */
  uint64_t kv_bytes;
  uint64_t index_bytes;
  uint64_t sealing_bytes;  /* most that is needed on top of them while a segment is built */
  uint64_t scratch_bytes;
  uint64_t total_bytes;
  uint64_t max_tokens;     /* most tokens that fit this session's budget */
} wi_memory_plan;

enum { WI_EVENT_TOKEN = 0, WI_EVENT_END = 1 };

typedef struct wi_event {
  uint32_t struct_size;
  int32_t kind;          /* WI_EVENT_* */
  int32_t token;
  int32_t reserved;
  const char* text;      /* UTF-8, whole code points only, owned by the session until its next call */
  uint64_t text_length;  /* bytes; 0 while a code point is incomplete */
} wi_event;

typedef struct wi_prefill_params {
  uint32_t struct_size;
  int32_t chunk_tokens;          /* 0: chosen by the library */
  wi_progress_callback progress; /* tokens done, tokens in this call; on the calling thread */
  void* progress_user;
  float* logits;                 /* NULL, or out: logits of every token of this call, (tokens, vocab) */
  uint64_t logits_capacity;      /* floats */
} wi_prefill_params;

typedef struct wi_session_stats {
  uint32_t struct_size;
  int32_t segments;
  uint64_t tokens;                /* in the session, the pending one included */
  uint64_t kv_bytes;              /* this session's, shared segments included */
  uint64_t index_bytes;
  uint64_t prefill_tokens;
  uint64_t decode_steps;
  uint64_t prefix_tokens;         /* taken over from other sessions instead of prefilled */
  uint64_t kv_bytes_read;         /* by decode steps, index reads included */
  uint64_t index_bytes_read;
  uint64_t retrieved_tokens;      /* summed over steps, layers and KV heads */
  uint64_t estimated_clusters;    /* likewise */
  uint64_t dropped_clusters;      /* ranked, but neither read nor estimated; likewise */
  uint64_t buffer_hits;           /* partitions found in the fast tier */
  uint64_t buffer_misses;
  uint64_t prefill_ns;
  uint64_t index_ns;              /* of prefill_ns and decode_ns: sealing segments */
  uint64_t decode_ns;
  uint64_t weights_ns;            /* of decode_ns: products with weights, and so on */
  uint64_t select_ns;
  uint64_t retrieve_ns;
  uint64_t attend_ns;
  uint64_t estimate_ns;
  double estimated_coverage;      /* mean share of attention mass covered exactly, by the centroids' estimate */
  double certified_coverage;      /* mean lower bound of it, by the clusters' radii */
  double certified_coverage_min;
} wi_session_stats;

WI_API wi_status wi_model_plan_memory(wi_model* model, const wi_session_params* params, uint64_t tokens, wi_memory_plan* plan_out, wi_error* error);

WI_API wi_status wi_session_create(wi_model* model, const wi_session_params* params, wi_session** session_out, wi_error* error);
WI_API wi_session* wi_session_retain(wi_session* session);
WI_API void wi_session_release(wi_session* session);
WI_API wi_status wi_session_prefill(wi_session* session, const int32_t* tokens, uint64_t count, const wi_prefill_params* params, wi_cancel* cancel, wi_error* error);
WI_API wi_status wi_session_append_text(wi_session* session, const char* text, uint64_t length, uint32_t flags, const wi_prefill_params* params, wi_cancel* cancel, wi_error* error);
WI_API wi_status wi_session_decode(wi_session* session, wi_cancel* cancel, wi_event* event_out, wi_error* error);
WI_API wi_status wi_session_logits(wi_session* session, wi_cancel* cancel, float* logits, uint64_t capacity, uint64_t* count_out, wi_error* error);
WI_API wi_status wi_session_tokens(wi_session* session, int32_t* tokens, uint64_t capacity, uint64_t* count_out, wi_error* error);
WI_API wi_status wi_session_fork(wi_session* session, wi_session** fork_out, wi_error* error);
WI_API wi_status wi_session_truncate(wi_session* session, uint64_t tokens, wi_error* error);
WI_API wi_status wi_session_save(wi_session* session, const char* path, wi_cancel* cancel, wi_error* error);
WI_API wi_status wi_session_load(wi_model* model, const char* path, const wi_session_params* params, wi_session** session_out, wi_error* error);
WI_API wi_status wi_session_set_sampling(wi_session* session, const wi_sampling_params* sampling, wi_error* error);
WI_API wi_status wi_session_get_stats(wi_session* session, wi_session_stats* stats_out, wi_error* error);

/* ---- Batch ---- */
WI_API wi_status wi_batch_decode(wi_session* const* sessions, uint64_t count, wi_cancel* cancel, wi_event* events_out, wi_error* error);

/* ---- KV store alone ---- */
typedef struct wi_kv_params {
  uint32_t struct_size;
  int32_t layers;
  int32_t query_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t kv_type;
  const wi_policy_params* policy;
  uint64_t kv_budget_bytes;
} wi_kv_params;

WI_API wi_status wi_kv_create(wi_runtime* runtime, const wi_kv_params* params, wi_kv** kv_out, wi_error* error);
WI_API wi_kv* wi_kv_retain(wi_kv* kv);
WI_API void wi_kv_release(wi_kv* kv);
WI_API wi_status wi_kv_append(wi_kv* kv, int32_t layer, uint64_t tokens, const float* keys, const float* values, wi_error* error);
WI_API wi_status wi_kv_seal(wi_kv* kv, wi_error* error);
WI_API wi_status wi_kv_attend(wi_kv* kv, int32_t layer, uint64_t rows, const float* queries, wi_cancel* cancel, float* out, float* lse_out, wi_error* error);
WI_API wi_status wi_kv_fork(wi_kv* kv, wi_kv** fork_out, wi_error* error);
WI_API wi_status wi_kv_truncate(wi_kv* kv, uint64_t tokens, wi_error* error);
WI_API wi_status wi_kv_get_stats(wi_kv* kv, wi_session_stats* stats_out, wi_error* error);

#ifdef __cplusplus
}
#endif
#endif
