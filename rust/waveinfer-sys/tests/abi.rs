//! tests/abi/waveinfer-2.abi.txt is made from the header: what this crate believes must be that, line for line.
use std::collections::BTreeSet;
use std::mem::{align_of, offset_of, size_of};

use waveinfer_sys::*;

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/abi/waveinfer-2.abi.txt");

fn size_of_field<S, F>(_: fn(*const S) -> *const F) -> usize {
    size_of::<F>()
}

macro_rules! structs {
    ($lines:ident: $($name:ident { $($field:ident),* $(,)? })*) => { $(
        $lines.insert(format!(
            "struct {} size {} align {}", stringify!($name), size_of::<$name>(), align_of::<$name>()));
        $(
            // SAFETY: no field is read, its address alone is taken.
            let field = |of: *const $name| unsafe { std::ptr::addr_of!((*of).$field) };
            $lines.insert(format!(
                "field {}.{} offset {} size {}", stringify!($name), stringify!($field),
                offset_of!($name, $field), size_of_field(field)));
        )*
    )* };
}
macro_rules! values {
    ($lines:ident: $($name:ident),* $(,)?) => { $(
        $lines.insert(format!("value {} {}", stringify!($name), $name));
    )* };
}
macro_rules! symbols {
    ($lines:ident: $($name:ident),* $(,)?) => { $(
        std::hint::black_box($name as *const ()); // the linker must find it
        $lines.insert(format!("symbol {}", stringify!($name)));
    )* };
}

#[test]
fn the_manifest_of_the_abi_is_what_this_crate_believes() {
    let mut believed = BTreeSet::new();
    structs! { believed:
        wi_error { struct_size, code, native_code, message }
        wi_runtime_params {
            struct_size, threads, device, kv_budget_bytes, huge_pages, bind_threads,
            log_level, nice, log, log_user, task_wait_ms, reserved_1, log_release,
            spill_folder, spill_bytes, buffer_manager, reserved_2
        }
        wi_device_info {
            struct_size, threads, name, description, simd, cores, numa_nodes,
            memory_bytes, l2_bytes, l3_bytes, policies, usable,
            reason
        }
        wi_policy_info { struct_size, reserved, name, description }
        wi_runtime_stats {
            struct_size, sessions, kv_budget_bytes, kv_bytes, kv_bytes_peak,
            scratch_bytes, prefix_hits, copied_weight_bytes, slow_bytes, frame_bytes,
            buffer_admissions, buffer_evictions, buffer_refusals, buffer_late,
            slow_read_bytes, slow_reads, slow_read_ns, slow_written_bytes, pinning_refused,
            slow_stalls
        }
        wi_reader { struct_size, reserved, bytes, read, user }
        wi_writer { struct_size, reserved, write, user }
        wi_model_params { struct_size, precision, progress, progress_user, weights, reserved }
        wi_token_info { struct_size, flags, text, text_length }
        wi_model_info {
            struct_size, layers, hidden, query_heads, kv_heads, head_dim, ffn, vocab,
            bos_token, eos_token, max_positions, parameters, weight_bytes,
            kv_bytes_per_token, architecture, name, weight_type, chat_family
        }
        wi_chat_message { struct_size, reserved, role, content, content_length, fields_json }
        wi_chat_params { struct_size, flags, tools_json, variables_json, now }
        wi_policy_params {
            struct_size, segment_tokens, name, decode_segment_tokens,
            tokens_per_centroid, kmeans_iterations, local_window, budget, estimation,
            target_mass, budget_floor, budget_ceiling, repeats
        }
        wi_text { text, length }
        wi_logit_bias { token, bias }
        wi_sampling_params {
            struct_size, temperature, top_k, top_p, min_p, repetition_penalty,
            repetition_window, reserved, seed, logit_bias, logit_bias_count,
            logits_callback, logits_user, stops, stop_count, top_logprobs, reserved_2
        }
        wi_session_params {
            struct_size, kv_type, policy, sampling, kv_budget_bytes, sparse_read_tokens,
            prefix_reuse, kv_fast_share, reserved_1
        }
        wi_memory_plan {
            struct_size, fits, weight_bytes, kv_bytes, index_bytes, sealing_bytes,
            scratch_bytes, total_bytes, max_tokens, fast_bytes
        }
        wi_event {
            struct_size, kind, token, reserved, text, text_length, logprob, reserved_2,
            top, top_count
        }
        wi_token_logprob { token, logprob }
        wi_prefill_params {
            struct_size, chunk_tokens, progress, progress_user, logits, logits_capacity
        }
        wi_session_stats {
            struct_size, segments, tokens, kv_bytes, index_bytes, prefill_tokens,
            decode_steps, prefix_tokens, kv_bytes_read, index_bytes_read,
            retrieved_tokens, estimated_clusters, dropped_clusters, buffer_hits,
            buffer_misses, prefill_ns, index_ns, decode_ns, weights_ns, select_ns,
            retrieve_ns, attend_ns, estimate_ns, estimated_coverage, certified_coverage,
            certified_coverage_min, slow_bytes, buffer_admissions, buffer_refusals,
            buffer_late, buffer_evictions, buffer_stalls
        }
        wi_task_params {
            struct_size, priority, tokens, token_count, text, text_length,
            tokenize_flags, reserved, max_tokens, sampling, notify, notify_user
        }
        wi_task_info {
            struct_size, state, status, reserved, prompt_tokens, prompt_done,
            answer_tokens, queued_ns, first_token_ns, message, native_code
        }
        wi_kv_params {
            struct_size, layers, query_heads, kv_heads, head_dim, kv_type, policy,
            kv_budget_bytes
        }
    }
    values! { believed:
        WI_EVENT_LIMIT, WI_EVENT_CANCELLED, WI_EVENT_FAILED, WI_TASK_QUEUED,
        WI_TASK_READING, WI_TASK_WRITING, WI_TASK_DONE, WI_TASK_CANCELLED, WI_TASK_FAILED,
        WI_ABI_VERSION, WI_OK, WI_E_ARGUMENT, WI_E_FORMAT, WI_E_UNSUPPORTED, WI_E_IO,
        WI_E_MEMORY, WI_E_BUDGET, WI_E_CANCELLED, WI_E_BUSY, WI_E_STATE, WI_E_MISMATCH,
        WI_E_DEVICE, WI_E_DEVICE_LOST, WI_E_INTERNAL, WI_LOG_NONE, WI_LOG_ERROR,
        WI_LOG_WARNING, WI_LOG_INFO, WI_LOG_DEBUG, WI_HUGE_PAGES_AUTO, WI_HUGE_PAGES_OFF,
        WI_BIND_AUTO, WI_BIND_OFF, WI_BUFFER_AUTO, WI_BUFFER_LRU, WI_BUFFER_BUCKETED,
        WI_PRECISION_FAST, WI_PRECISION_F32, WI_PRECISION_HIGH, WI_PRECISION_INT8,
        WI_WEIGHTS_MAPPED, WI_WEIGHTS_COPIED, WI_TOKENIZE_ADD_BOS,
        WI_TOKENIZE_PARSE_SPECIAL, WI_DETOKENIZE_KEEP_SPECIAL, WI_TOKEN_CONTROL,
        WI_TOKEN_END, WI_TOKEN_BYTE, WI_TOKEN_UNUSED, WI_TOKEN_USER,
        WI_CHAT_ADD_GENERATION_PROMPT, WI_KV_F16, WI_KV_BF16, WI_KV_F32,
        WI_PREFIX_REUSE_AUTO, WI_PREFIX_REUSE_OFF, WI_PREFIX_REUSE_ON, WI_EVENT_TOKEN,
        WI_EVENT_END, WI_EVENT_STOP
    }
    symbols! { believed:
        wi_abi_version, wi_batch_decode, wi_cancel_create, wi_cancel_release,
        wi_cancel_reset, wi_cancel_retain, wi_cancel_trigger, wi_kv_append, wi_kv_attend,
        wi_kv_create, wi_kv_fork, wi_kv_get_stats, wi_kv_load, wi_kv_load_from,
        wi_kv_release, wi_kv_retain, wi_kv_save, wi_kv_save_to, wi_kv_saved_bytes,
        wi_kv_seal, wi_kv_truncate, wi_model_chat_render, wi_model_chat_tokens,
        wi_model_detokenize, wi_model_get_info, wi_model_get_metadata,
        wi_model_metadata_count, wi_model_metadata_key, wi_model_open, wi_model_open_memory,
        wi_model_open_reader, wi_model_plan_memory, wi_model_release, wi_model_retain,
        wi_model_token_info, wi_model_tokenize, wi_device_count, wi_device_get_info, wi_runtime_create, wi_runtime_device_info,
        wi_runtime_get_stats, wi_runtime_policy, wi_runtime_release, wi_runtime_retain,
        wi_session_accept, wi_session_append_text, wi_session_create, wi_session_decode,
        wi_session_fork, wi_session_fork_as, wi_session_get_stats, wi_session_load,
        wi_session_load_from, wi_session_logits, wi_session_prefill, wi_session_release,
        wi_session_retain, wi_session_save, wi_session_save_to, wi_session_saved_bytes,
        wi_session_set_sampling, wi_session_tokens, wi_session_truncate, wi_status_name,
        wi_task_cancel, wi_task_get_fd, wi_task_get_info, wi_task_poll, wi_task_release,
        wi_task_retain, wi_task_submit, wi_task_wait, wi_version
    }

    let manifest = std::fs::read_to_string(MANIFEST).expect(MANIFEST);
    let stated: BTreeSet<_> =
        manifest.lines().filter(|line| !line.starts_with('#')).map(String::from).collect();
    let missing: Vec<_> = stated.difference(&believed).collect();
    let wrong: Vec<_> = believed.difference(&stated).collect();
    assert!(stated.len() > 300, "{MANIFEST} says next to nothing");
    assert!(missing.is_empty() && wrong.is_empty(), "stated: {missing:#?}\nbelieved: {wrong:#?}");
}

#[test]
fn nothing_is_bound_that_the_manifest_does_not_state() {
    let manifest = std::fs::read_to_string(MANIFEST).expect(MANIFEST);
    let bindings = include_str!("../src/bindings.rs");
    let stated = |kind| manifest.lines().filter(|line| line.starts_with(kind)).count();
    let bound = |item| bindings.lines().filter(|line| line.trim_start().starts_with(item)).count();
    assert_eq!(bound("pub fn wi_"), stated("symbol "));
    assert_eq!(bound("pub const WI_"), stated("value "));
    assert_eq!(bound("pub struct wi_"), stated("struct ") + bound("_unused: [u8; 0]"));
}

#[test]
fn the_library_has_the_abi_of_its_bindings() {
    // SAFETY: the call takes nothing and cannot fail.
    assert_eq!(unsafe { wi_abi_version() }, WI_ABI_VERSION);
}
