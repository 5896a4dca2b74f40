#!/usr/bin/env python3
"""Small valid seeds for fuzz_gguf, fuzz_safetensors, fuzz_tokenizer_json, fuzz_chat and fuzz_chat_tokens. Needs PyPI's gguf and numpy."""
import json
import os
import struct

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = os.path.join(HERE, "corpus")


def save(folder, name, content):
    os.makedirs(os.path.join(CORPUS, folder), exist_ok=True)
    with open(os.path.join(CORPUS, folder, name), "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
alphabet = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]  # of byte-level BPE


def seed_gguf(name, architecture, sentencepiece, extra=lambda writer: None):
    os.makedirs(os.path.join(CORPUS, "gguf"), exist_ok=True)
    writer = gguf.GGUFWriter(os.path.join(CORPUS, "gguf", name), architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<unk>", "<s>", "</s>", *(["a", "b"] if sentencepiece else alphabet), "ab"]
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3] + [1] * (len(tokens) - 3))
    if sentencepiece:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([0.0, 0.0, 0.0, -2.0, -3.0, -1.0])
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    extra(writer)

    def tensor(key, *shape):
        writer.add_tensor(key, np.ones(shape, dtype=np.float16 if len(shape) == 2 else np.float32))

    # Two heads of 8: the smallest that a model may have.
    tensor("token_embd.weight", len(tokens), 16)
    tensor("output_norm.weight", 16)
    for key, rows, columns in (("attn_q", 16, 16), ("attn_k", 8, 16), ("attn_v", 8, 16), ("attn_output", 16, 16),
                               ("ffn_gate", 8, 16), ("ffn_up", 8, 16), ("ffn_down", 16, 8)):
        tensor(f"blk.0.{key}.weight", rows, columns)
    for key in ("attn_norm", "ffn_norm"):
        tensor(f"blk.0.{key}.weight", 16)
    if architecture == "qwen2":
        for key, rows in (("attn_q", 16), ("attn_k", 8), ("attn_v", 8)):
            tensor(f"blk.0.{key}.bias", rows)
    if architecture == "qwen3":
        tensor("blk.0.attn_q_norm.weight", 8)
        tensor("blk.0.attn_k_norm.weight", 8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def yarn(writer):
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(16)


seed_gguf("llama", "llama", True)
seed_gguf("llama-yarn", "llama", True, yarn)
seed_gguf("qwen2", "qwen2", False)
seed_gguf("qwen3", "qwen3", True)

header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
                     "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
                     "c": {"dtype": "F16", "shape": [1], "data_offsets": [22, 24]}}).encode()
save("safetensors", "three", b"s" + struct.pack("<Q", len(header)) + header + bytes(24))
CONFIG = dict(model_type="llama", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
              num_key_value_heads=1, vocab_size=300, max_position_embeddings=128, rms_norm_eps=1e-5, head_dim=16,
              tie_word_embeddings=True, hidden_act="silu", rope_theta=10000.0)
for name, scaling in {"default": None, "linear": {"type": "linear", "factor": 2.0},
                      "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 64},
                      "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0,
                               "mscale_all_dim": 0.7, "truncate": False, "beta_fast": 32, "beta_slow": 1}}.items():
    save("safetensors", "config-" + name, "c" + json.dumps(dict(CONFIG, rope_scaling=scaling)))
save("safetensors", "index", "i" + json.dumps({"metadata": {"total_size": 4}, "weight_map": {"a": "x.safetensors"}}))

SPECIAL = [{"id": i, "content": text, "special": True} for i, text in enumerate(["<unk>", "<s>", "</s>"])]
PIECES = ["<unk>", "<s>", "</s>", "▁", "H", "e", "l", "o", "ll", "He", "<0x41>"]
sentencepiece = {"added_tokens": SPECIAL,
                 "normalizer": {"type": "Sequence", "normalizers": [
                     {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
                 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},
                 "model": {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "merges": ["l l", ["H", "e"]],
                           "vocab": {text: i for i, text in enumerate(PIECES)}}}
words = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": [{"name": "default", "template": "x"}]}
save("tokenizer_json", "sentencepiece", "\0".join([json.dumps(sentencepiece), json.dumps(words), '{"eos_token_id": 2}',
                                                   '{"eos_token_id": [2, 1]}', ""]))
metaspace = dict(sentencepiece, normalizer=None,
                 pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False})
save("tokenizer_json", "metaspace", json.dumps(metaspace) + "\0" + json.dumps(dict(words, add_bos_token=True)))
bytes_level = {"added_tokens": [{"id": 256, "content": "<|end|>", "special": True}], "normalizer": {"type": "NFC"},
               "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                   {"type": "Split", "pattern": {"Regex": r"\p{L}+|\s+"}, "behavior": "Isolated", "invert": False},
                   {"type": "Digits", "individual_digits": True},
                   {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]},
               "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(alphabet)} | {"ll": 257}, "merges": ["l l"]}}
save("tokenizer_json", "byte_level", json.dumps(bytes_level, ensure_ascii=False) + '\0{"eos_token": "<|end|>"}')

chat = json.load(open(os.path.join(HERE, "..", "fixtures", "chat.json")))
variables = json.dumps(chat["variables"])
for first in range(0, len(chat["features"]), 8):  # several a seed: a small corpus that reaches the whole language
    templates = "\n".join(feature["template"] for feature in chat["features"][first:first + 8] if feature["text"] is not None)
    save("chat", f"features-{first // 8:02}", "\0".join([templates, " Hi \n", '{"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}', "[{}]", variables]))
for name in ("qwen3", "llama-3.1", "mistral nemo", "deepseek r1"):
    template = next(model["template"] for model in chat["models"] if model["name"] == name)
    save("chat", "model-" + name.replace(" ", "-"), "\0".join([template, "Hello", '{"reasoning_content": "r"}']))

# Template and host in turn, under each of fuzz_chat_tokens' normalizers, with each of its ways to cut tokens out.
parts = ["<s><|user|>", "Hello e\u0301\u0338 <s>", "<|end|>\n<think>", "\uff1cs\uff1e</s> > x [/s y>", "<", "s", "><\uff5ce\uff5c>\n", "  ", "</s>"]
for which in range(48):
    save("chat_tokens", f"normalizer-{which:02}", bytes([which, which // 12 % 2]) + "\0".join(parts).encode())
save("chat_tokens", "completed-by-a-mark", bytes([13, 0]) + "\0".join(["<e", "\u0301", "><s>", "</s>"]).encode())
save("chat_tokens", "completed-by-a-letter", bytes([23, 0]) + "\0".join(["<|en", "d|", "><s>", "<s>"]).encode())
