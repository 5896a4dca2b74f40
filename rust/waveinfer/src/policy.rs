use std::ptr::null;

use waveinfer_sys::*;

use crate::call::{c_string, int, sized};
use crate::error::Result;

/// How the past is indexed and what a query reads of it.
///
/// A sequence is its first 4 tokens, sealed segments, and the recent tokens. The first and the recent ones are
/// attended exactly (steady zone). A segment's keys are clustered per layer and KV head; a query ranks all
/// clusters, reads the best exactly (retrieval zone), takes the next through centroid, size and value sum
/// (estimation zone), and drops the rest, counted in the statistics (RetroInfer, section 4.2). Fields that are not
/// set have their defaults; when a session is loaded, those of the file.
///
/// ```
/// use waveinfer::Policy;
/// let exact = Policy::full();
/// let thrifty = Policy::wave().budget(0.01).segment_tokens(4096);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Policy {
    name: Option<String>,
    segment_tokens: i32,
    decode_segment_tokens: i32,
    tokens_per_centroid: i32,
    kmeans_iterations: i32,
    local_window: i32,
    budget: f32,
    estimation: f32,
    target_mass: f32,
    budget_floor: f32,
    budget_ceiling: f32,
    repeats: i32,
}

impl Policy {
    /// The default one: clusters, retrieved and estimated.
    pub fn wave() -> Self {
        Self::named("wave")
    }

    /// Nothing is clustered and every token is read.
    pub fn full() -> Self {
        Self::named("full")
    }

    /// The newest indexed tokens that the budget pays for (StreamingLLM), to be compared with.
    pub fn streaming() -> Self {
        Self::named("streaming")
    }

    /// The pages of 16 consecutive tokens whose keys may score highest by their bounds (Quest), to be compared
    /// with.
    pub fn blocks() -> Self {
        Self::named("blocks")
    }

    /// One of [`Runtime::policies`](crate::Runtime::policies); others are
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..Self::default() }
    }

    /// Tokens of the longest segments: a multiple of 64 in [64, 1048576]. Default: 8192.
    pub fn segment_tokens(mut self, tokens: u32) -> Self {
        self.segment_tokens = int(tokens);
        self
    }

    /// Tokens of the shortest segments, and of those that are sealed while decoding; range as for
    /// [`segment_tokens`](Self::segment_tokens). Default: 256.
    pub fn decode_segment_tokens(mut self, tokens: u32) -> Self {
        self.decode_segment_tokens = int(tokens);
        self
    }

    /// Mean cluster size, 1 to 1024. Default: 16.
    pub fn tokens_per_centroid(mut self, tokens: u32) -> Self {
        self.tokens_per_centroid = int(tokens);
        self
    }

    /// Rounds of spherical k-means, 1 to 100. Default: 10.
    pub fn kmeans_iterations(mut self, iterations: u32) -> Self {
        self.kmeans_iterations = int(iterations);
        self
    }

    /// Most recent tokens that are never sealed, at most 1048576; negative: none. Default: 64.
    pub fn local_window(mut self, tokens: i32) -> Self {
        self.local_window = tokens;
        self
    }

    /// Share of the indexed tokens that is read exactly, in (0, 1]; 1: all. Default: 0.018.
    pub fn budget(mut self, share: f32) -> Self {
        self.budget = share;
        self
    }

    /// Share of the clusters that is estimated, at most 1; 1: all that are not read; negative: none.
    /// Default: 0.232.
    pub fn estimation(mut self, share: f32) -> Self {
        self.estimation = share;
        self
    }

    /// In (0, 1): instead of a fixed budget, clusters are read until the estimated share of attention mass that is
    /// covered exactly reaches this. Default: a fixed budget; negative is that too, where a saved session has
    /// another.
    pub fn target_mass(mut self, share: f32) -> Self {
        self.target_mass = share;
        self
    }

    /// With a target mass: at least this share is read, in (0, budget_ceiling]. Default: budget / 8.
    pub fn budget_floor(mut self, share: f32) -> Self {
        self.budget_floor = share;
        self
    }

    /// With a target mass: at most this share is read, in (0, 1]. Default: budget * 4, at most 1.
    pub fn budget_ceiling(mut self, share: f32) -> Self {
        self.budget_ceiling = share;
        self
    }

    /// Under "wave": where the newest tokens, at least three of them, stood before, the clusters of what came then
    /// are read whatever their rank. So many such places, at most 8; negative: none. Default: 2.
    pub fn repeats(mut self, places: i32) -> Self {
        self.repeats = places;
        self
    }

    pub(crate) fn with_raw<R>(
        policy: Option<&Self>,
        call: impl FnOnce(*const wi_policy_params) -> Result<R>,
    ) -> Result<R> {
        let Some(policy) = policy else { return call(null()) };
        let name = policy.name.as_deref().map(|name| c_string("policy", name)).transpose()?;
        call(&sized!(wi_policy_params {
            segment_tokens: policy.segment_tokens,
            name: name.as_ref().map_or(null(), |name| name.as_ptr()),
            decode_segment_tokens: policy.decode_segment_tokens,
            tokens_per_centroid: policy.tokens_per_centroid,
            kmeans_iterations: policy.kmeans_iterations,
            local_window: policy.local_window,
            budget: policy.budget,
            estimation: policy.estimation,
            target_mass: policy.target_mass,
            budget_floor: policy.budget_floor,
            budget_ceiling: policy.budget_ceiling,
            repeats: policy.repeats,
        }))
    }
}
