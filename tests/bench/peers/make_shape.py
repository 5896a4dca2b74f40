"""Writes a GGUF file of a published shape with random weights, for runtimes to be compared on.

    make_shape.py SHAPE TYPE FILE        SHAPE: tiny, small, llama-1b; TYPE: f16, q8_0
"""
import sys

import gguf
import numpy as np

SHAPES = {  # layers, hidden, query heads, KV heads, head_dim, ffn, vocab
    "tiny": (2, 256, 4, 2, 64, 512, 32000),
    "small": (4, 2048, 32, 8, 64, 8192, 32000),
    "llama-1b": (16, 2048, 32, 8, 64, 8192, 128256),
}
TYPES = {"f16": gguf.GGMLQuantizationType.F16, "q8_0": gguf.GGMLQuantizationType.Q8_0}


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def main():
    shape, kind, path = sys.argv[1:4]
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab = SHAPES[shape]
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(shape)
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = byte_alphabet()
    tokens.append(tokens[0] + tokens[1])  # readers want at least one merge
    tokens += [f"word{i}" for i in range(len(tokens), vocab)]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * vocab)
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def add(name, rows, cols):
        weights = (rng.standard_normal((rows, cols), dtype=np.float32)) / np.sqrt(cols)
        writer.add_tensor(name, gguf.quants.quantize(weights, TYPES[kind]), raw_dtype=TYPES[kind])

    add("token_embd.weight", vocab, hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, dtype=np.float32))
    for i in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(hidden, dtype=np.float32))
        add(f"blk.{i}.attn_q.weight", heads * head_dim, hidden)
        add(f"blk.{i}.attn_k.weight", kv_heads * head_dim, hidden)
        add(f"blk.{i}.attn_v.weight", kv_heads * head_dim, hidden)
        add(f"blk.{i}.attn_output.weight", hidden, heads * head_dim)
        add(f"blk.{i}.ffn_gate.weight", ffn, hidden)
        add(f"blk.{i}.ffn_up.weight", ffn, hidden)
        add(f"blk.{i}.ffn_down.weight", hidden, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
