use std::fmt;
use std::time::Duration;

use waveinfer_sys::*;

use crate::call::{call, sized, Handle};
use crate::error::Result;
use crate::Model;

/// What a session or a KV store has done, as of the end of its last call. Sums are over its life; a fork starts
/// from zero.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Sealed segments.
    pub segments: i32,
    /// In the session, the pending one included.
    pub tokens: u64,
    /// Held in fast memory: keys, values and index, shared segments included.
    pub kv_bytes: u64,
    /// Of them.
    pub index_bytes: u64,
    /// Given to prefill and append_text. 0 of a KV store, as what follows about prefill, weights and prefixes.
    pub prefill_tokens: u64,
    /// Of a KV store: calls of attend.
    pub decode_steps: u64,
    /// Of `prefill_tokens`: taken over from other sessions instead of computed.
    pub prefix_tokens: u64,
    /// By decode steps: keys, values and index.
    pub kv_bytes_read: u64,
    /// Of them.
    pub index_bytes_read: u64,
    /// Read from segments exactly; summed over steps, layers and KV heads.
    pub retrieved_tokens: u64,
    /// Likewise.
    pub estimated_clusters: u64,
    /// Ranked, but neither read nor estimated; likewise.
    pub dropped_clusters: u64,
    /// Partitions found in the fast tier; likewise.
    pub buffer_hits: u64,
    /// Partitions that had to be brought there; likewise.
    pub buffer_misses: u64,
    /// Of prefill and append_text.
    pub prefill_time: Duration,
    /// Of `prefill_time` and `decode_time`: sealing segments.
    pub index_time: Duration,
    /// Of decode, accept and logits; in a batch, of the whole step, as its parts below.
    pub decode_time: Duration,
    /// Of `decode_time`: everything but attention, mostly products with weights; sampling.
    pub weights_time: Duration,
    /// Of `decode_time`: looking up repeats, ranking clusters.
    pub select_time: Duration,
    /// Of `decode_time`: bringing them to the fast tier.
    pub retrieve_time: Duration,
    /// Of `decode_time`: exact attention.
    pub attend_time: Duration,
    /// Of `decode_time`: the estimation zone.
    pub estimate_time: Duration,
    /// Share of the attention mass that was covered exactly, mean over steps, layers and heads, estimated; 1 before
    /// the first step.
    pub estimated_coverage: f64,
    /// A lower bound of the true share, likewise.
    pub certified_coverage: f64,
    /// The least of it over steps, layers and heads.
    pub certified_coverage_min: f64,
    /// Keys and values in the slow tier; shared segments included.
    pub slow_bytes: u64,
    /// Of a slow tier that is a file, and of `buffer_misses`: found frames to stay in.
    pub buffer_admissions: u64,
    /// Found none that was free; likewise.
    pub buffer_refusals: u64,
    /// Were brought in by another step meanwhile; likewise.
    pub buffer_late: u64,
    /// Partitions, of whichever session, that made room for them.
    pub buffer_evictions: u64,
    /// Lookups that waited for the slow tier; summed over steps, layers and KV heads.
    pub buffer_stalls: u64,
}

impl SessionStats {
    pub(crate) fn get(read: impl FnOnce(*mut wi_session_stats, *mut wi_error) -> wi_status) -> Result<Self> {
        let mut stats = sized!(wi_session_stats {});
        call(|error| read(&mut stats, error))?;
        Ok(Self {
            segments: stats.segments,
            tokens: stats.tokens,
            kv_bytes: stats.kv_bytes,
            index_bytes: stats.index_bytes,
            prefill_tokens: stats.prefill_tokens,
            decode_steps: stats.decode_steps,
            prefix_tokens: stats.prefix_tokens,
            kv_bytes_read: stats.kv_bytes_read,
            index_bytes_read: stats.index_bytes_read,
            retrieved_tokens: stats.retrieved_tokens,
            estimated_clusters: stats.estimated_clusters,
            dropped_clusters: stats.dropped_clusters,
            buffer_hits: stats.buffer_hits,
            buffer_misses: stats.buffer_misses,
            prefill_time: Duration::from_nanos(stats.prefill_ns),
            index_time: Duration::from_nanos(stats.index_ns),
            decode_time: Duration::from_nanos(stats.decode_ns),
            weights_time: Duration::from_nanos(stats.weights_ns),
            select_time: Duration::from_nanos(stats.select_ns),
            retrieve_time: Duration::from_nanos(stats.retrieve_ns),
            attend_time: Duration::from_nanos(stats.attend_ns),
            estimate_time: Duration::from_nanos(stats.estimate_ns),
            estimated_coverage: stats.estimated_coverage,
            certified_coverage: stats.certified_coverage,
            certified_coverage_min: stats.certified_coverage_min,
            slow_bytes: stats.slow_bytes,
            buffer_admissions: stats.buffer_admissions,
            buffer_refusals: stats.buffer_refusals,
            buffer_late: stats.buffer_late,
            buffer_evictions: stats.buffer_evictions,
            buffer_stalls: stats.buffer_stalls,
        })
    }
}

/// Reads the statistics of a session or a KV store from any thread, also while a call on it is running, in a task
/// too. It keeps the memory of what it reads from.
#[derive(Clone)]
pub struct StatsReader(Of);

#[derive(Clone)]
enum Of {
    /// With the model, whose weights may lie in the host's memory.
    Session(Handle<wi_session>, #[allow(dead_code)] Model),
    Kv(Handle<wi_kv>),
}

// SAFETY: the header: statistics may be read from any thread at any time, and nothing else is done here.
unsafe impl Send for StatsReader {}
unsafe impl Sync for StatsReader {}

impl StatsReader {
    pub(crate) fn of_session(session: &Handle<wi_session>, model: &Model) -> Self {
        Self(Of::Session(session.clone(), model.clone()))
    }

    pub(crate) fn of_kv(kv: &Handle<wi_kv>) -> Self {
        Self(Of::Kv(kv.clone()))
    }

    /// As of the end of its last call.
    pub fn stats(&self) -> Result<SessionStats> {
        // SAFETY: handle and output are valid.
        SessionStats::get(|out, error| unsafe {
            match &self.0 {
                Of::Session(session, _) => wi_session_get_stats(session.get(), out, error),
                Of::Kv(kv) => wi_kv_get_stats(kv.get(), out, error),
            }
        })
    }
}

impl fmt::Debug for StatsReader {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("StatsReader")
    }
}
