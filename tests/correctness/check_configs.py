"""Folders with random config.json files, here and in transformers: the same logits, or refused by name.

    check_configs.py --library build/lib/libwaveinfer.so [--seed N] [--cases N]

Each is a tiny model of an architecture that is supported, with random weights and with whatever its config.json may say or
leave out: heads, biases, RoPE scalings in the old place and in the new, sliding windows, tied embeddings, keys that mean
nothing, and keys that would change arithmetic and are not implemented. Of those that transformers computes, this library
computes the same (both in f32; a logit's distance is at most 2e-3 of the largest) or opens none. The last tokens are
decoded, so that both ways of attention are seen. What was refused is printed with how often.
"""
import json
import os
import pathlib
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "support")]
import random_cases

VOCAB, TOLERANCE = 272, 2e-3
CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# Of every hundred configurations so many have one of these, which some architecture does not know or nobody here computes.
STRANGE = {"hidden_act": ["gelu", "relu", "swish"], "mlp_bias": [True], "partial_rotary_factor": [0.5, 1.0], "attention_chunk_size": [16],
           "final_logit_softcapping": [30.0], "attn_logit_softcapping": [30.0], "logit_scale": [0.5], "is_causal": [False], "clip_qkv": [1.0],
           "no_rope_layers": [[0, 1]], "pretraining_tp": [2], "layer_types": [["sliding_attention"] * 2, ["full_attention"] * 2]}


def random_rope(rng, theta):
    kind = rng.choice(["default", "linear", "yarn", "llama3"] * 4 + ["dynamic", "longrope", "proportional"])
    rope = {"rope_type": kind}
    if kind in ("linear", "dynamic", "yarn", "llama3"):
        rope["factor"] = rng.choice([1.0, 1.5, 2.0, 8])
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([2.0, 4.0])}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    if kind == "llama3" or (kind in ("yarn", "longrope", "dynamic") and rng.random() < 0.6):
        rope["original_max_position_embeddings"] = rng.choice([16, 32, 64])
    if kind == "yarn":
        maybe(rng, 0.3, rope, attention_factor=[1.0, 0.7, None], beta_fast=[32, 16.0], beta_slow=[1, 2.0], mscale=[1.0, 0.707],
              mscale_all_dim=[1.0, 0.5], truncate=[True, False])
    if theta:
        maybe(rng, 0.7, rope, rope_theta=[10000.0, 500000, 1e6])
    return rope


def maybe(rng, share, into, **choices):
    for key, values in choices.items():
        if rng.random() < share:
            into[key] = rng.choice(values)


def random_config(rng):
    kind, heads, size = rng.choice(list(CLASSES)), rng.choice([2, 4, 8]), rng.choice([8, 16, 32, 64])
    hidden = heads * size if rng.random() < 0.6 else rng.choice([32, 48, 64])
    config = {"model_type": kind, "architectures": [CLASSES[kind]], "vocab_size": VOCAB, "hidden_size": hidden,
              "intermediate_size": rng.choice([48, 64, 96]), "num_hidden_layers": rng.choice([1, 2, 3]), "num_attention_heads": heads,
              "num_key_value_heads": rng.choice([n for n in (1, 2, 4, 8) if heads % n == 0])}
    if hidden != heads * size or rng.random() < 0.5:
        config["head_dim"] = size
    maybe(rng, 0.9, config, max_position_embeddings=[64, 128, 256, 2048])
    maybe(rng, 0.8, config, rms_norm_eps=[1e-5, 1e-6, 1e-3], hidden_act=["silu"])
    maybe(rng, 0.4, config, tie_word_embeddings=[True, False], attention_bias=[True, False], sliding_window=[None, 8, 24, 4096],
          use_sliding_window=[True, False], max_window_layers=[0, 1, 28])
    maybe(rng, 0.2, config, attention_dropout=[0.0, 0.1], mlp_bias=[False], pretraining_tp=[1], use_cache=[True], torch_dtype=["float32"])
    where = rng.choice(["nowhere", "rope_parameters", "rope_scaling", "both", "null"])
    if where in ("rope_parameters", "both"):
        config["rope_parameters"] = random_rope(rng, True)
    if where in ("rope_scaling", "both"):
        config["rope_scaling"] = random_rope(rng, False)
        if rng.random() < 0.3:
            config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    if where == "null":
        config["rope_scaling"] = None
    if where in ("nowhere", "rope_scaling"):
        maybe(rng, 0.6, config, rope_theta=[10000.0, 500000.0, 1000000])
    if rng.random() < 0.15:
        maybe(rng, 1, config, **dict([rng.choice(list(STRANGE.items()))]))
    return config


def reference(folder, rng, tokens):
    """The logits (tokens, vocab) of a model whose weights it writes; None where transformers makes or runs none, or none that are
    finite."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                spread = 0.3 if weight.dim() > 1 else 0.2
                weight.copy_(torch.randn(weight.shape, generator=generator) * spread + ("norm" in name))
            logits = model(torch.tensor([tokens])).logits[0].numpy()
    except Exception:  # whatever it may be: there is nothing to compare with
        return None
    weights = {name: weight.contiguous().clone() for name, weight in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    return logits if np.isfinite(logits).all() else None


def random_case(rng, folder):
    config = random_config(rng)
    pathlib.Path(folder, "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        pathlib.Path(folder, name).write_bytes((TESTS / "fixtures/models" / name).read_bytes())
    tokens = [0] + [rng.randrange(4, VOCAB) for _ in range(rng.choice([4, 19, 39, 99]))]

    def compare(model, wanted):
        distance = random_cases.distance(model.logits(tokens, VOCAB, decoded=4), wanted)
        return f"{len(tokens)} tokens, distance {distance:.1e}: {json.dumps(config)}" if distance > TOLERANCE else None
    return reference(folder, rng, tokens), folder, compare


def main():
    transformers.logging.set_verbosity_error()
    return random_cases.run("configs", f"torch {torch.__version__}, transformers {transformers.__version__}", random_case)


if __name__ == "__main__":
    sys.exit(main())
