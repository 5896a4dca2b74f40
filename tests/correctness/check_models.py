"""Next-token distributions of tiny random models that llama.cpp quantised, here, in llama.cpp and in transformers.

    check_models.py --library build/lib/libwaveinfer.so [--only llama:Q4_K_M] [--seed N] [--folder DIR] [--tokens N]

For every architecture and every type: an f32 GGUF with random weights, quantised by llama.cpp itself, then run by
  ours       this library, by one prefill with WI_PRECISION_F32, by decode steps, and by prefill with HIGH and FAST
  llama.cpp  on the same file
  exact      transformers in f32 with the weights that the file's blocks stand for (gguf's dequantize)
  f32        transformers in f32 with the weights before quantisation
KL divergences are means over the prompt's positions, in nats. What must hold, and why:
  KL(llama.cpp || ours) <= 1e-3 in all four ways, or 1.2 KL(llama.cpp || exact) where that is more. llama.cpp rounds
    activations to 8 bits before it multiplies by quantised weights, this library does not, so they cannot be equal,
    and some random weights make more of its rounding than others.
  KL(exact || ours) <= 1e-7 by prefill in f32 and HIGH and by decode steps: what is left is f32's rounding, or that of
    sums of two bf16 numbers, 16 bits.
  KL(f32 || ours) <= 1.2 KL(f32 || llama.cpp) + 1e-4, the type's own error: what quantising cost llama.cpp on the same
    weights. 1.2, as the weights' error is common to both and only the activations' differs; 1e-4, as for f16 the
    left side is rounding alone.
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
import llama
import make_models as tiny
import waveinfer

# llama_ftype; the letter after K is the mix: which matrices get more bits
FTYPES = {"F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
          "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18}
# Rows of 256 and 512, so that K-quants apply; layers enough for the mixes to give more bits to some of them.
SIZE = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
MODELS = {
    "llama": dict(tiny.LLAMA, **SIZE, tie_word_embeddings=False),
    "qwen2": dict(tiny.CASES["qwen2"][0], **SIZE),
    "qwen3": dict(tiny.CASES["qwen3"][0], **SIZE),
}
PEER, EXACT, FACTOR, REST = 1e-3, 1e-7, 1.2, 1e-4


def kl(reference, other):
    """Mean over positions of KL(reference || other), from logits (tokens, vocab)"""
    p, q = (x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)
            for x in (reference.astype(np.float64), other.astype(np.float64)))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def stored_types(path):
    counts = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if len(tensor.shape) > 1:
            counts[tensor.tensor_type.name.lower()] = counts.get(tensor.tensor_type.name.lower(), 0) + 1
    return " ".join(f"{name} {counts[name]}" for name in sorted(counts))


def compare(library, source, config, ftype, folder, tokens, f32, shapes):
    path = folder / f"{source.stem}-{ftype}.gguf"
    llama.quantise(source, path, FTYPES[ftype])
    theirs = llama.Model(path).logits(tokens, tiny.VOCAB)
    exact = tiny.logits(AutoConfig.for_model(**config), tiny.weights_of_gguf(path, config, shapes), tokens)
    model = library.open(path)
    ours = {"prefill": model.logits(tokens, tiny.VOCAB), "decode": model.logits(tokens, tiny.VOCAB, one_by_one=True),
            "high": library.open(path, "high").logits(tokens, tiny.VOCAB),
            "fast": library.open(path, "fast").logits(tokens, tiny.VOCAB)}
    peer = {way: kl(theirs, logits) for way, logits in ours.items()}
    rounding = max(kl(exact, ours[way]) for way in ("prefill", "decode", "high"))
    error, allowed = max(kl(f32, logits) for logits in ours.values()), FACTOR * kl(f32, theirs) + REST
    good = max(peer.values()) <= max(PEER, FACTOR * kl(theirs, exact)) and rounding <= EXACT and error <= allowed
    print(f"{source.stem:6} {ftype:7} {peer['prefill']:9.1e} {peer['decode']:9.1e} {peer['high']:9.1e} {peer['fast']:9.1e} {rounding:9.1e} {error:9.1e} "
          f"{allowed:9.1e}  {stored_types(path)}{'' if good else '  FAILED'}", flush=True)
    path.unlink()
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--only", action="append", help="ARCHITECTURE, or ARCHITECTURE:TYPE")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--folder", help="for the files; default: a temporary one")
    args = parser.parse_args()
    print(f"models: seed {args.seed}, {args.tokens} tokens, llama-cpp-python {llama.VERSION}, torch {torch.__version__}")
    print("KL, mean    llama.cpp || ours                           exact||     f32||\n"
          "model  type      prefill    decode      high      fast      ours      ours   allowed  stored matrices")
    library, failed, count = waveinfer.Library(args.library), 0, 0
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = pathlib.Path(temporary)
        for name, config in MODELS.items():
            types = [t for t in FTYPES if not args.only or name in args.only or f"{name}:{t}" in args.only]
            if not types:
                continue
            generator = torch.Generator().manual_seed(args.seed)
            reference = AutoConfig.for_model(**config)
            weights = tiny.random_weights(reference, generator)
            tokens = [0] + torch.randint(4, tiny.VOCAB, (args.tokens - 1,), generator=generator).tolist()
            f32 = tiny.logits(reference, weights, tokens)
            tiny.write_gguf(name, config, tiny.gguf_tensors(config, weights, gguf.GGMLQuantizationType.F32), folder)
            shapes = {key: tuple(weight.shape) for key, weight in weights.items()}
            for ftype in types:
                failed += not compare(library, folder / f"{name}.gguf", config, ftype, folder, tokens, f32, shapes)
                count += 1
    print(f"models: {count - failed} of {count} within bounds")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
