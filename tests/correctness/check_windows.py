"""Logits of tiny random models with sliding-window layers, here and in transformers, both in f32.

    check_windows.py --library build/lib/libwaveinfer.so [--seed N] [--tokens N]

Mistral, whose window is for all layers, Qwen2 with max_window_layers, and Qwen3 with layer_types, as folders and as
GGUF; a prompt so long that segments are sealed in it, read
  prefill  at once
  pieces   in calls of 97 tokens
  decode   by decode steps of the last quarter
under `full`, and under `wave` where the windows of all layers slide, so that no index is looked at. The largest absolute
difference of a logit is at most 1e-3: transformers' rotary angles are in f32, off by 1e-4 at 1,700 tokens.
"""
import argparse
import os
import pathlib
import sys
import tempfile

import gguf
import numpy as np
import torch
from transformers import AutoConfig

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(TESTS / "support"), str(TESTS / "fixtures")]
import make_models as tiny
import waveinfer

TOLERANCE = 1e-3
LONG = dict(max_position_embeddings=8192, num_hidden_layers=4)
QWEN = dict(LONG, use_sliding_window=True, sliding_window=100)
MODELS = {
    "mistral": dict(tiny.CASES["mistral-window"][0], **LONG, **{"sliding_window": 48}),
    "qwen2": dict(tiny.CASES["qwen2"][0], **QWEN | {"max_window_layers": 2}),
    "qwen2-all": dict(tiny.CASES["qwen2"][0], **QWEN | {"max_window_layers": 0, "sliding_window": 700}),
    "qwen3": dict(tiny.CASES["qwen3"][0], **QWEN | {"layer_types": ["sliding_attention", "full_attention"] * 2}),
}


def compare(name, model, policy, tokens, wanted):
    vocab, last = tiny.VOCAB, len(tokens) * 3 // 4
    ways = {"prefill": model.logits(tokens, vocab, policy) - wanted,
            "pieces": model.logits(tokens, vocab, policy, piece=97) - wanted,
            "decode": model.logits(tokens, vocab, policy, decoded=len(tokens) - last)[last:] - wanted[last:]}
    worst = {way: float(np.abs(difference).max()) for way, difference in ways.items()}
    good = max(worst.values()) <= TOLERANCE
    print(f"{name:16} {policy:5}", *(f"{way} {value:.1e}" for way, value in worst.items()), "" if good else "FAILED", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--tokens", type=int, default=1700)
    args = parser.parse_args()
    print(f"windows: seed {args.seed}, {args.tokens} tokens, torch {torch.__version__}; largest absolute difference")
    library, results = waveinfer.Library(args.library), []
    with tempfile.TemporaryDirectory() as temporary:
        tiny.OUT = temporary
        tiny.write_tokenizer()
        for name, config in MODELS.items():
            generator = torch.Generator().manual_seed(args.seed)
            reference = AutoConfig.for_model(**config)
            weights = tiny.random_weights(reference, generator)
            tokens = [0] + torch.randint(4, tiny.VOCAB, (args.tokens - 1,), generator=generator).tolist()
            wanted = tiny.logits(reference, weights, tokens)
            tiny.write_directory(name, config, weights, torch.float32, None)
            tiny.write_gguf(name, config, tiny.gguf_tensors(config, weights, gguf.GGMLQuantizationType.F32))
            policies = ["full", "wave"] if all(tiny.sliding_layers(config)) else ["full"]
            for file in (name, name + ".gguf"):
                model = library.open(os.path.join(temporary, file))
                results += [compare(file, model, policy, tokens, wanted) for policy in policies]
    print(f"windows: {sum(results)} of {len(results)} within bounds")
    return not all(results)


if __name__ == "__main__":
    sys.exit(main())
