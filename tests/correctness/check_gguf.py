"""GGUF files with random keys, here and in llama.cpp: the same logits, or refused by name.

    check_gguf.py --library build/lib/libwaveinfer.so [--seed N] [--cases N]

Each is a tiny model of an architecture that is supported, with random weights in f32 and whatever its keys may say or leave
out: heads and their sizes, numbers for all layers or for each, RoPE scalings, a tensor of frequencies, biases, keys that mean
nothing, and keys of other architectures that llama.cpp may or may not read in this one. Of those that llama.cpp computes (KV in
f32; in a process of its own, since it ends its process over some) this library computes the same, within 4e-3 of the largest
logit, or opens none. What was refused is printed with how often.
"""
import json
import os
import pathlib
import sys

import gguf
import numpy as np

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "support")]
import llama
import random_cases

TOLERANCE = 4e-3  # llama.cpp's softmax and SwiGLU are of f16 tables' precision in places
VOCABULARY = json.loads((TESTS / "fixtures/tokenizers/gpt-2.json").read_text())
VOCAB = len(VOCABULARY["tokens"])
# One file in twenty-five has each of these.
STRANGE = {"attention.sliding_window": [0, 8, 16, 4096], "attention.scale": [0.0, 0.5], "attention.causal": [True], "logit_scale": [1.0, 0.5],
           "attention.clamp_kqv": [0.0, 1.0], "vocab_size": [VOCAB], "use_parallel_residual": [True, False], "expert_count": [0],
           "embedding_scale": [1.0, 2.0], "residual_scale": [1.0, 0.5], "final_logit_softcapping": [30.0], "tensor_data_layout": ["Meta AI original pth"],
           "attention.temperature_length": [100], "pooling_type": [0], "nextn_predict_layers": [0, 1], "rope.scale_linear": [1.0, 2.0],
           "rope.scaling.attn_factor": [1.0, 0.8, 1.2], "rope.scaling.yarn_attn_factor": [1.0, 0.9], "rope.scaling.yarn_ext_factor": [1.0, 0.0, -1.0, 0.5],
           "rope.scaling.yarn_log_multiplier": [0.1, 0.0], "rope.scaling.finetuned": [True, False]}


def random_keys(rng):
    """(architecture, sizes by name, keys without the architecture's name)"""
    heads, layers, size = rng.choice([2, 4, 8]), rng.choice([1, 2]), rng.choice([16, 32, 64])
    sizes = {"layers": layers, "heads": heads, "kv_heads": rng.choice([n for n in (1, 2, 4, 8) if heads % n == 0]),
             "hidden": rng.choice([32, 64, heads * size]), "ffn": rng.choice([48, 64])}
    each = lambda value: value if rng.random() < 0.9 else [value] * layers
    keys = {"context_length": rng.choice([64, 128, 2048]), "embedding_length": sizes["hidden"], "block_count": layers,
            "feed_forward_length": each(sizes["ffn"]), "attention.head_count": each(heads), "attention.layer_norm_rms_epsilon": rng.choice([1e-5, 1e-6, 1e-3])}
    if sizes["kv_heads"] != heads or rng.random() < 0.5:
        keys["attention.head_count_kv"] = each(sizes["kv_heads"])
    architecture = rng.choice(["llama", "qwen2", "qwen3"])
    if architecture != "qwen2" and (size * heads != sizes["hidden"] or rng.random() < 0.5):  # Qwen2's heads share the width there
        keys |= {"attention.key_length": size, "attention.value_length": size}
    sizes["head"] = keys.get("attention.key_length", sizes["hidden"] // heads)
    if rng.random() < 0.5:
        keys["rope.dimension_count"] = sizes["head"] if rng.random() < 0.9 else sizes["head"] // 2
    if rng.random() < 0.6:
        keys["rope.freq_base"] = rng.choice([10000.0, 500000.0, 1e6])
    if rng.random() < 0.6:
        kind = rng.choice(["none", "linear", "linear", "yarn", "yarn", "yarn", "longrope", None])
        keys |= {"rope.scaling.type": kind} if kind else {}
        keys |= {"rope.scaling.factor": rng.choice([1.0, 2.0, 4.0, 8.0, 0.5])} if rng.random() < 0.85 else {}
        keys |= {"rope.scaling.original_context_length": rng.choice([16, 32, 64])} if rng.random() < 0.6 else {}
    for key, values in STRANGE.items():
        if rng.random() < 0.04:
            keys[key] = rng.choice(values)
    return architecture, sizes, keys


def random_tensors(rng, architecture, sizes):
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    make = lambda *shape, spread=0.3, mean=0: numbers.normal(mean, spread, shape).astype(np.float32)
    norm = lambda width: make(width, spread=0.2, mean=1)
    hidden, ffn, head = sizes["hidden"], sizes["ffn"], sizes["head"]
    queries, keys = sizes["heads"] * head, sizes["kv_heads"] * head
    tensors = {"token_embd.weight": make(VOCAB, hidden), "output_norm.weight": norm(hidden)}
    if rng.random() < 0.7:
        tensors["output.weight"] = make(VOCAB, hidden)
    if rng.random() < 0.15:
        tensors["rope_freqs.weight"] = np.abs(make(head // 2, spread=0.5, mean=1)) + np.float32(0.1)
    biased = architecture == "qwen2" or rng.random() < 0.15
    for layer in range(sizes["layers"]):
        at = f"blk.{layer}."
        tensors |= {at + "attn_norm.weight": norm(hidden), at + "ffn_norm.weight": norm(hidden), at + "attn_q.weight": make(queries, hidden),
                    at + "attn_k.weight": make(keys, hidden), at + "attn_v.weight": make(keys, hidden), at + "attn_output.weight": make(hidden, queries),
                    at + "ffn_gate.weight": make(ffn, hidden), at + "ffn_up.weight": make(ffn, hidden), at + "ffn_down.weight": make(hidden, ffn)}
        if biased:
            tensors |= {at + "attn_q.bias": make(queries), at + "attn_k.bias": make(keys), at + "attn_v.bias": make(keys)}
        if architecture == "qwen3":
            tensors |= {at + "attn_q_norm.weight": norm(head), at + "attn_k_norm.weight": norm(head)}
        if rng.random() < 0.03:
            tensors[at + "ffn_down.bias"] = make(hidden)
    return tensors


def write(path, architecture, keys, tensors):
    writer = gguf.GGUFWriter(path, architecture)
    add = {bool: writer.add_bool, float: writer.add_float32, str: writer.add_string, list: writer.add_array, int: writer.add_uint32}
    for key, value in keys.items():
        add[type(value)](f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(VOCABULARY["tokens"])
    writer.add_token_types(VOCABULARY["kinds"])
    writer.add_token_merges(VOCABULARY["merges"])
    writer.add_bos_token_id(VOCABULARY["bos"])
    writer.add_eos_token_id(VOCABULARY["eos"])
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def reference(path, tokens):
    """llama.cpp's logits (tokens, vocab), or None where it computes none that are finite."""
    out = path + ".npy"
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            np.save(out, llama.Model(path).logits(tokens, VOCAB, kv_type=0))  # GGML_TYPE_F32
            os._exit(0)
        except BaseException:  # whatever it may be: there is nothing to compare with
            os._exit(1)
    logits = np.load(out) if os.waitpid(child, 0)[1] == 0 else None
    return logits if logits is not None and np.isfinite(logits).all() else None


def random_case(rng, folder):
    path = os.path.join(folder, "model.gguf")
    architecture, sizes, keys = random_keys(rng)
    write(path, architecture, keys, random_tensors(rng, architecture, sizes))
    tokens = [0] + [rng.randrange(4, VOCAB) for _ in range(rng.choice([4, 19, 39, 89]))]

    # llama.cpp knows no windows in this architecture. check_windows.py compares them with transformers.
    if architecture == "llama" and 0 < keys.get("attention.sliding_window", 0) < len(tokens):
        return None, path, None

    def compare(model, wanted):
        distance = random_cases.distance(model.logits(tokens, VOCAB, decoded=3), wanted)
        return f"{len(tokens)} tokens, distance {distance:.1e}: {architecture} {json.dumps(keys)}" if distance > TOLERANCE else None
    return reference(path, tokens), path, compare


def main():
    return random_cases.run("gguf", f"llama-cpp-python {llama.VERSION}", random_case)


if __name__ == "__main__":
    sys.exit(main())
