"""What models, sessions and stores are made with. As in the ABI zero means default in every number."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from ._abi import ffi
from ._calls import Target, on_logits
from ._values import Arguments, Text

UNLIMITED = 2**64 - 1
"""kv_budget_bytes of a session that is loaded: no budget, whatever was saved."""


class LogLevel(enum.IntEnum):
    """How much is logged; as a parameter NONE is the default, WARNING."""

    NONE = 0
    """As a parameter: the default, WARNING."""
    ERROR = 1
    """What failed."""
    WARNING = 2
    """What does not work as well as it should, too."""
    INFO = 3
    """What the library runs on and does, too."""
    DEBUG = 4
    """Everything."""


class HugePages(enum.IntEnum):
    """Huge pages for large pieces of KV and copied weights."""

    AUTO = 0
    """Ask the system for them."""
    OFF = 1
    """Do not."""


class BindThreads(enum.IntEnum):
    """Where the runtime's threads run."""

    AUTO = 0
    """Pinned to cores on machines of several NUMA nodes."""
    OFF = 1
    """Where the system puts them."""


class BufferManager(enum.IntEnum):
    """Which clusters of a slow tier make room for others in the fast one."""

    AUTO = 0
    """LRU."""
    LRU = 1
    """The least recently used, exactly."""
    BUCKETED = 2
    """By age in 64 steps, as a device always does."""


class Precision(enum.IntEnum):
    """How prefill multiplies by weights, keys and values narrower than f32; INT8 is decoding's too."""

    FAST = 0
    """In bf16 with f32 sums where that is faster (AMX, AMD's AVX512_BF16, ARM's BF16); logits are off by 1 or 2 %
    of their spread. Elsewhere as F32, but by quantised weights as in decoding."""
    F32 = 1
    """Everything in f32; where FAST is in bf16 half as fast, a quarter with AMX."""
    HIGH = 2
    """Where there is AMX, each number as the sum of two bf16 numbers, 16 significant bits: half as fast as FAST,
    two thirds with weights in bf16. Elsewhere F32."""
    INT8 = 3
    """By quantised weights in integers, decoding as well as prefill, each 32 numbers of a row rounded to 8 bits
    under a scale of their own; logits are off by 1 % of their spread. By weights that are not quantised, and in
    attention, as FAST."""


class Weights(enum.IntEnum):
    """Where weights lie while the model lives."""

    MAPPED = 0
    """In the file, which must not change so long: one that is cut short or whose disk goes away ends the process
    with SIGBUS. Opening reads next to nothing, and processes that map the same file share its memory."""
    COPIED = 1
    """In memory of this process alone, on huge pages where allowed. Opening reads the whole file and closes it."""


class KvType(enum.IntEnum):
    """Type of stored keys and values."""

    F16 = 0
    """IEEE half precision, 2 bytes; when a session or a store is loaded: as saved."""
    BF16 = 1
    """The upper half of an f32, 2 bytes."""
    F32 = 2
    """IEEE single precision, 4 bytes."""


class PrefixReuse(enum.IntEnum):
    """Whether a prompt takes over segments of another session's that begins likewise."""

    AUTO = 0
    """Whole chunks are taken over, which changes no bit; when a session is loaded: as saved."""
    OFF = 1
    """Everything is computed."""
    ON = 2
    """Whatever is the same is taken over; logits then differ by rounding."""


@dataclass(frozen=True)
class Policy:
    """How the past is indexed and what a query reads of it (wi_policy_params)."""

    name: str | None = None
    """"wave", "full", "streaming" or "blocks". None: "wave"."""
    segment_tokens: int = 0
    """Tokens of the longest segments, a multiple of 64 in [64, 1048576]. 0: 8192."""
    decode_segment_tokens: int = 0
    """Tokens of the shortest ones, and of those that are sealed while decoding. 0: 256."""
    tokens_per_centroid: int = 0
    """Mean cluster size, 1 to 1024. 0: 16."""
    kmeans_iterations: int = 0
    """1 to 100. 0: 10."""
    local_window: int = 0
    """Most recent tokens that are never sealed. 0: 64; negative: none."""
    budget: float = 0.0
    """Share of the indexed tokens read exactly, in (0, 1]. 0: 0.018."""
    estimation: float = 0.0
    """Share of the clusters estimated, at most 1. 0: 0.232; negative: none."""
    target_mass: float = 0.0
    """Above 0: read until this share of the attention mass is covered exactly, instead of a fixed budget."""
    budget_floor: float = 0.0
    """With target_mass: at least this share. 0: budget / 8."""
    budget_ceiling: float = 0.0
    """With target_mass: at most this share. 0: budget * 4, at most 1."""
    repeats: int = 0
    """Places where the newest tokens stood before, whose continuation is read, at most 8. 0: 2; negative: none."""


LogitsCallback = Callable[[NDArray[np.float32]], object]
"""Changes the logits that a token is about to be sampled from, in place: (vocab) f32, after logit_bias, before
penalty and temperature; -inf forbids a token. An exception ends the call and is raised by it. The array is
used again for the next token: copy what is to be kept."""


@dataclass(frozen=True)
class Sampling:
    """How decode picks a token: logit_bias, logits, penalty, temperature, top_k, min_p, top_p, in this order.

    The same seed and the same logits give the same tokens, on every machine.
    """

    temperature: float = 0.0
    """0 to 100. 0: greedy, always the best token."""
    top_k: int = 0
    """Keep so many best tokens. 0: all."""
    top_p: float = 0.0
    """(0, 1]: keep the best tokens that have this probability together. 0: all."""
    min_p: float = 0.0
    """[0, 1): drop tokens less likely than this share of the best one. 0: off."""
    repetition_penalty: float = 0.0
    """(0, 100]: recent tokens' positive logits are divided by it, negative ones multiplied. 0: 1, off."""
    repetition_window: int = 0
    """Recent tokens that it looks at. 0: 64."""
    seed: int = 0
    """Of the random numbers, 64 bits."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens; -inf forbids one."""
    logits: LogitsCallback | None = None
    """Called before each token is sampled, on the thread that decodes; in a task, on the engine's."""
    stops: Sequence[Text] = ()
    """Texts that end an answer, at most 64 of 1 to 1024 bytes. They are never told, not even in part."""
    top_logprobs: int = 0
    """0 to 64: how many of the likeliest tokens an event lists."""


class Sampler:
    """What a logits callback reaches: it works on a copy, so that it may keep the array without harm."""

    def __init__(self, function: LogitsCallback) -> None:
        self._function = function
        # At most one, and taken out while it is in use: forks share this sampler, and may decode on other threads
        # or within the function, where a call that finds none makes its own.
        self._spare: deque[NDArray[np.float32]] = deque(maxlen=1)
        self.failure: BaseException | None = None  # the last one on the engine's thread

    def change(self, logits: Any, vocab: int) -> None:
        """Shows the user a copy of logits, (vocab) f32, and takes back what became of it."""
        try:
            shown = self._spare.pop()  # all forks are of one model, and of its vocabulary
        except IndexError:
            shown = np.empty(vocab, np.float32)
        copy = ffi.from_buffer("float[]", shown, require_writable=True)
        ffi.memmove(copy, logits, 4 * vocab)
        self._function(shown)
        ffi.memmove(logits, copy, 4 * vocab)
        self._spare.append(shown)


class SessionOptions(TypedDict, total=False):
    """What a session is made with; what is not given is default."""

    kv_type: KvType
    """Type of stored keys and values. Default: F16."""
    policy: Policy
    """How the past is indexed and read. Default: "wave" as in RetroInfer."""
    sampling: Sampling
    """How tokens are picked. Default: greedy."""
    kv_budget_bytes: int
    """Most bytes of this session's KV and index. Default: only the runtime's budget counts."""
    sparse_read_tokens: int
    """Appended chunks of at most so many tokens read the past through the policy. Default: none do."""
    prefix_reuse: PrefixReuse
    """Take over segments of another session's prompt that begins likewise. Default: AUTO."""
    kv_fast_share: float
    """With a slow tier, as a device has: the share of the sealed keys and values that may stay in fast memory, in
    (0, 1]. Default: as much as the budgets have room for."""


def policy_struct(arguments: Arguments, policy: Policy | None) -> Any:
    """A wi_policy_params; NULL for None."""
    if policy is None:
        return ffi.NULL
    given = {each.name: getattr(policy, each.name) for each in fields(policy)}
    given["name"] = arguments.name("policy", policy.name)
    return arguments.struct("wi_policy_params", **given)


def sampling_struct(arguments: Arguments, sampling: Sampling | None) -> tuple[Any, tuple[object, ...]]:
    """The struct, and what must live as long as sessions that have it."""
    if sampling is None:
        return ffi.NULL, ()
    plain = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "repetition_window", "seed"}
    struct = arguments.struct(
        "wi_sampling_params",
        top_logprobs=sampling.top_logprobs,
        **{name: getattr(sampling, name) for name in plain},
    )
    if sampling.logit_bias:
        given = list(sampling.logit_bias.items())
        biases = arguments.keep(ffi.new("wi_logit_bias[]", len(given)))
        for bias, (token, value) in zip(biases, given, strict=True):
            bias.token, bias.bias = token, value
        struct.logit_bias, struct.logit_bias_count = biases, len(biases)
    if sampling.stops:
        texts = list(sampling.stops)
        stops = arguments.keep(ffi.new("wi_text[]", len(texts)))
        for stop, text in zip(stops, texts, strict=True):
            stop.text, stop.length = arguments.text(text)
        struct.stops, struct.stop_count = stops, len(stops)
    if sampling.logits is None:
        return struct, ()
    sampler = Sampler(sampling.logits)
    target = Target(sampler)
    struct.logits_callback, struct.logits_user = on_logits, target.user
    return struct, (sampler, target)


def session_struct(arguments: Arguments, options: SessionOptions) -> tuple[Any, tuple[object, ...]]:
    """As sampling_struct; NULL where nothing is given."""
    if not options:
        return ffi.NULL, ()
    given: dict[str, Any] = {**options}
    policy = policy_struct(arguments, given.pop("policy", None))
    sampling, keeps = sampling_struct(arguments, given.pop("sampling", None))
    unknown = given.keys() - SessionOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"a session has no option {', '.join(sorted(unknown))}")
    return arguments.struct("wi_session_params", policy=policy, sampling=sampling, **given), keeps
