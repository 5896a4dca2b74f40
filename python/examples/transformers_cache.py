"""Gives a Hugging Face transformers model this store as its Cache and its attention: long contexts in a model
that the library does not know.

    transformers_cache.py [MODEL [TEXT]]

WaveCache takes the keys and values of each layer; attention() answers queries from it, looking up clusters
where the model's own would read everything. A prompt attends to itself exactly. Without MODEL a small OLMo 2
with random weights, which the library itself would not open, shows that under "full" the tokens are the model's
own, and how much less "wave" reads (its tokens are others here: weights that learnt nothing look at everything
alike).
MODEL is whatever AutoModelForCausalLM opens, with full attention in all of its layers.

Needs torch and transformers. How it was run, on a CPU, with torch 2.15 and transformers 5.23:

    python3 -m venv venv && . venv/bin/activate
    pip install ./python torch transformers
    WAVEINFER_LIBRARY=build/lib/libwaveinfer.so python python/examples/transformers_cache.py
"""

import math
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
    Olmo2Config,
    Olmo2ForCausalLM,
)
from transformers.cache_utils import Cache

import waveinfer

CHUNK = 512  # tokens of a prompt that attend to each other in torch, and to those before them in the store
SEAL = 1024  # tokens of an answer between two looks whether something can be sealed


class WaveCache(Cache):
    """A Cache whose keys and values are in a waveinfer.KvStore. One sequence, no padding."""

    def __init__(
        self, runtime: waveinfer.Runtime, config: Any, policy: str, kv_type: waveinfer.KvType
    ) -> None:
        super().__init__(layers=[])
        heads = config.num_attention_heads
        self.store = waveinfer.KvStore(
            runtime,
            layers=config.num_hidden_layers,
            query_heads=heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            kv_type=kv_type,
            policy=waveinfer.Policy(policy),
        )
        self.tokens = [0] * config.num_hidden_layers
        self.sealed = 0
        self.read_by_prompt = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, _layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hands what is new on to attention(), with the cache that it belongs to."""
        if key_states.shape[0] != 1:
            raise ValueError(f"a batch of {key_states.shape[0]}: this cache is of one sequence")
        key_states.wave_cache = self
        return key_states, value_states

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:  # (tokens, heads, head_dim) f32, as all here
        """Attention of new tokens to all before them and to themselves; they are in the store then."""
        outs = []
        for start in range(0, q.shape[0], CHUNK):
            here = slice(start, start + CHUNK)
            if q.shape[0] == 1:
                self.store.append(layer, k, v)
                out = torch.from_numpy(self.store.attend(layer, q))
            else:
                out, lse = causal_attention(q[here], k[here], v[here])
                if self.tokens[layer] > 0:
                    past, past_lse = map(torch.from_numpy, self.store.attend_lse(layer, q[here]))
                    share = torch.sigmoid(past_lse - lse)[..., None]
                    out = share * past + (1 - share) * out
                self.store.append(layer, k[here], v[here])
            self.tokens[layer] += k[here].shape[0]
            outs.append(out)
        if layer == len(self.tokens) - 1 and (q.shape[0] > 1 or self.tokens[layer] >= self.sealed + SEAL):
            self.store.seal()
            self.sealed = self.tokens[layer]
            if q.shape[0] > 1:
                self.read_by_prompt = self.store.stats().kv_bytes_read
        return torch.cat(outs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that a layer has."""
        return self.tokens[layer_idx]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """What a mask would cover, if attention() wanted one."""
        return self.tokens[layer_idx] + query_length, 0

    def get_max_length(self, _: int | None = None) -> int:
        """There is no maximum."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Takes the last -tokens_to_remove tokens away."""
        self.store.truncate(self.tokens[0] + tokens_to_remove)
        self.tokens = [self.tokens[0] + tokens_to_remove] * len(self.tokens)
        self.sealed = min(self.sealed, self.tokens[0])

    def reset(self) -> None:
        """Takes all tokens away."""
        self.crop(-self.tokens[0])


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of tokens to themselves and to those before them: (tokens, heads, head_dim), and the natural log of the
    sum of exponentials, (tokens, heads).
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->qhk", q, k) / math.sqrt(q.shape[2])
    later = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).triu(1)
    scores.masked_fill_(later[:, None, :], -torch.inf)
    lse = scores.logsumexp(2)
    return torch.einsum("qhk,khd->qhd", (scores - lse[..., None]).exp(), v), lse


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: Any,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in each layer, with (1, heads, tokens, head_dim)."""

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[0].transpose(0, 1).float().contiguous()

    q = rows(query) * (scaling * math.sqrt(query.shape[3]))  # the store scales by 1 / sqrt(head_dim)
    out = key.wave_cache.attend(module.layer_idx, q, rows(key), rows(value))
    return out[None].to(query.dtype), None


AttentionInterface.register("waveinfer", attention)


def generate(model: Any, tokens: torch.Tensor, cache: Cache | None, count: int) -> list[int]:
    model.set_attn_implementation("sdpa" if cache is None else "waveinfer")
    out = model.generate(tokens, past_key_values=cache, max_new_tokens=count, do_sample=False)
    return [int(token) for token in out[0, tokens.shape[1] :]]


def compare(model: Any, tokens: torch.Tensor, kv_type: waveinfer.KvType) -> dict[str, list[int]]:
    """Answers of the model's own attention, and of the store's under two policies."""
    answers = {"its own": generate(model, tokens, None, 64)}
    with waveinfer.Runtime() as runtime:
        for policy in ("full", "wave"):
            cache = WaveCache(runtime, model.config, policy, kv_type)
            answers[policy] = generate(model, tokens, cache, 64)
            stats = cache.store.stats()
            read, steps = stats.kv_bytes_read - cache.read_by_prompt, len(answers[policy]) - 1
            print(
                f"{policy}: {stats.tokens} tokens, {stats.segments} segments, {stats.kv_bytes / 1e6:.1f} MB, "
                f"{read / max(steps, 1) / 1e6:.2f} MB read a step; the same tokens as its own: "
                f"{'yes' if answers[policy] == answers['its own'] else 'no'}"
            )
    return answers


USAGE = """usage: transformers_cache.py [MODEL [TEXT]]
Example: transformers_cache.py allenai/OLMo-2-0425-1B story.txt"""


def main() -> None:
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(USAGE)
        sys.exit()
    torch.manual_seed(1)
    if len(sys.argv) == 1:
        config = Olmo2Config(
            vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=32768,
            pad_token_id=0, bos_token_id=1, eos_token_id=None,
        )  # fmt: skip
        model = Olmo2ForCausalLM(config).eval()
        answers = compare(model, torch.randint(2, 1000, (1, 6000)), waveinfer.KvType.F32)
        assert answers["full"] == answers["its own"]
        return
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
    text = Path(sys.argv[2]).read_text(encoding="utf-8") if len(sys.argv) > 2 else "Once upon a time"
    tokens = tokenizer(text, return_tensors="pt").input_ids
    for name, answer in compare(model, tokens, waveinfer.KvType.F16).items():
        print(f"--- {name}\n{tokenizer.decode(answer)}")


if __name__ == "__main__":
    main()
