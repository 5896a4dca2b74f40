"""What the library tells of itself: result structs as dataclasses, fields named as in the ABI.

Units: `_bytes` are bytes, `_ns` nanoseconds, `_tokens` tokens.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceInfo:
    """What a runtime runs on (wi_device_info)."""

    threads: int
    """Of the host's, that the runtime works with."""
    name: str
    """"cpu", "cuda:0"."""
    description: str
    """The processor's or the device's own name."""
    simd: str
    """Instruction set that the kernels chose."""
    cores: int
    """Physical cores this process may use; a device's multiprocessors."""
    numa_nodes: int
    """With at least one of them."""
    memory_bytes: int
    """This process may use."""
    l2_bytes: int
    """Per core; 0: unknown."""
    l3_bytes: int
    """Per group of cores; 0: unknown."""
    policies: int
    """That there are on it."""
    usable: int
    """1: a runtime can be made on it."""
    reason: str
    """Why not, in words; empty if it can be used."""


@dataclass(frozen=True)
class PolicyInfo:
    """A way of indexing and selecting, to be named in `Policy`."""

    name: str
    """To be given as Policy.name."""
    description: str
    """One line in English."""


@dataclass(frozen=True)
class RuntimeStats:
    """What a runtime holds at a moment (wi_runtime_stats)."""

    sessions: int
    """Alive now."""
    kv_budget_bytes: int
    """In force."""
    kv_bytes: int
    """KV, index and tail bytes now; what sessions share counts once."""
    kv_bytes_peak: int
    """Most since creation."""
    scratch_bytes: int
    """Workspaces of prefill and decode, kept for the next step."""
    prefix_hits: int
    """Segments taken over from another session instead of being computed."""
    copied_weight_bytes: int
    """Of living models that were opened with Weights.COPIED."""
    slow_bytes: int
    """In the spill folder's file, or pinned, now."""
    frame_bytes: int
    """Of kv_bytes: frames for what queries want of the slow tier."""
    buffer_admissions: int
    """Partitions that came into frames to stay; since creation, as all below."""
    buffer_evictions: int
    """Partitions that made room."""
    buffer_refusals: int
    """Partitions that were read and found no free frame."""
    buffer_late: int
    """Partitions that two steps brought in at once."""
    slow_read_bytes: int
    """That the disk was asked for."""
    slow_reads: int
    """Reads that the disk was asked for."""
    slow_read_ns: int
    """That calls waited for them."""
    slow_written_bytes: int
    """Into the spill folder's file."""
    pinning_refused: int
    """Of a device: how often the system refused to pin host memory."""
    slow_stalls: int
    """Times that a call waited for the disk."""


@dataclass(frozen=True)
class ModelInfo:
    """A model's hyper-parameters (wi_model_info)."""

    layers: int
    """Of the transformer."""
    hidden: int
    """Width of the residual stream."""
    query_heads: int
    """A multiple of kv_heads."""
    kv_heads: int
    """Heads of keys and values."""
    head_dim: int
    """Of each head."""
    ffn: int
    """Width of the feed-forward block."""
    vocab: int
    """Token ids are in [0, vocab)."""
    bos_token: int
    """-1: none."""
    eos_token: int
    """-1: none; events know every token that ends an answer."""
    max_positions: int
    """The model was made for at most so many tokens; enforced where it is not implemented beyond them."""
    parameters: int
    """Weights, counted."""
    weight_bytes: int
    """As stored in the file."""
    kv_bytes_per_token: int
    """All layers, with f16 KV, without index."""
    architecture: str
    """"llama", "qwen2" or "qwen3"."""
    name: str
    """As the file calls it; may be empty."""
    weight_type: str
    """Of most weight bytes: "f16", "q8_0", "q4_k" and so on."""
    chat_family: str
    """"template" if the file has a chat template, empty if it has none."""


class TokenFlag(enum.IntFlag):
    """What a token is."""

    CONTROL = 1
    """<|end|> and the like: written by detokenize only if asked for."""
    END = 2
    """Ends an answer."""
    BYTE = 4
    """Stands for one byte."""
    UNUSED = 8
    """Fills up the vocabulary: no text becomes it."""
    USER = 16
    """A word that was added to the vocabulary."""


@dataclass(frozen=True)
class TokenInfo:
    """One token of a vocabulary."""

    flags: TokenFlag
    """What it is."""
    text: bytes
    """As detokenize writes it within a text, control tokens by name; any bytes."""


@dataclass(frozen=True)
class MemoryPlan:
    """What a session of so many tokens would take (wi_memory_plan)."""

    fits: bool
    """It fits the budgets, and everything the memory this process may use."""
    weight_bytes: int
    """If mapped, shared with other processes and taken back under pressure."""
    kv_bytes: int
    """Keys and values of all tokens."""
    index_bytes: int
    """At most."""
    sealing_bytes: int
    """Most that is needed besides while a segment is being built."""
    scratch_bytes: int
    """Activations, estimated; shared by sessions that take turns."""
    total_bytes: int
    """Sum of these."""
    max_tokens: int
    """Most tokens that fit the budgets if this session has the runtime's to itself."""
    fast_bytes: int
    """Of kv, index and sealing, what must be in fast memory where there is a slow tier."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fits", bool(self.fits))


@dataclass(frozen=True)
class SessionStats:
    """What a session, or a KV store, has done (wi_session_stats). Sums are over its life; a fork's begin at 0."""

    segments: int
    """Sealed."""
    tokens: int
    """In the session, the pending one included."""
    kv_bytes: int
    """Held in fast memory: keys, values and index, shared segments included."""
    index_bytes: int
    """Of them."""
    prefill_tokens: int
    """Given to prefill and append_text."""
    decode_steps: int
    """Of a KV store: calls of attend."""
    prefix_tokens: int
    """Of prefill_tokens: taken over from other sessions instead of computed."""
    kv_bytes_read: int
    """By decode steps: keys, values and index."""
    index_bytes_read: int
    """Of them."""
    retrieved_tokens: int
    """Read from segments exactly; summed over steps, layers and KV heads."""
    estimated_clusters: int
    """Likewise."""
    dropped_clusters: int
    """Ranked, but neither read nor estimated; likewise."""
    buffer_hits: int
    """Partitions found in the fast tier; likewise."""
    buffer_misses: int
    """Partitions that had to be brought there; likewise."""
    prefill_ns: int
    """Of prefill and append_text."""
    index_ns: int
    """Of prefill_ns and decode_ns: sealing segments."""
    decode_ns: int
    """Of decode, accept and logits; in a batch, of the whole step, as its parts below."""
    weights_ns: int
    """Of decode_ns: everything but attention."""
    select_ns: int
    """Of decode_ns: looking up repeats, ranking clusters."""
    retrieve_ns: int
    """Of decode_ns: bringing them to the fast tier."""
    attend_ns: int
    """Of decode_ns: exact attention."""
    estimate_ns: int
    """Of decode_ns: the estimation zone."""
    estimated_coverage: float
    """Share of the attention mass that was covered exactly, estimated; mean."""
    certified_coverage: float
    """A lower bound of it; mean."""
    certified_coverage_min: float
    """Over steps, layers and heads."""
    slow_bytes: int
    """Keys and values in the slow tier."""
    buffer_admissions: int
    """Of a slow tier that is a file, and of buffer_misses: found frames to stay in."""
    buffer_refusals: int
    """Found none that was free; likewise."""
    buffer_late: int
    """Were brought in by another step meanwhile; likewise."""
    buffer_evictions: int
    """Partitions, of whichever session, that made room for them."""
    buffer_stalls: int
    """Lookups that waited for the slow tier; summed over steps, layers and KV heads."""
