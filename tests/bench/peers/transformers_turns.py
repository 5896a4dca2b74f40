"""transformers with PyTorch's SDPA on one GGUF file's weights, a measurement for each line of standard input
(results.answer_turns has the words):

    transformers_turns.py MODEL --threads N [--device cpu|cuda] [--dtype bfloat16|float16|float32] [--steps N]

PyTorch has no products with GGUF's quantised types: weights and cache are of --dtype whatever the file holds. Decoding uses
a static cache of just the length needed (its SDPA reads the whole of it, masked), filled with random numbers; prefill is one
forward pass, which only keeps the last token's logits. On a GPU the decode step is compiled (reduce-overhead).
"""
import argparse
import ctypes
import gc
import pathlib
import sys
import time

import gguf
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parents[1] / "fixtures")]
import make_models
import results

WARM_UP = 3


@torch.inference_mode()
def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = load(args.model, getattr(torch, args.dtype)).to(args.device).eval()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # loading's peak is not running's
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None

    def forward(step, ids, cache):
        wait()
        start = time.perf_counter()
        step(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1, 0].item()
        wait()
        return time.perf_counter() - start

    def answer(**values):
        return values | ({"peak_device_bytes": torch.cuda.max_memory_allocated()} if args.device == "cuda" else {})

    ids = lambda count: torch.arange(count, device=args.device)[None] * 7919 % 32000
    step = torch.compile(model, mode="reduce-overhead", fullgraph=False) if args.device == "cuda" else model

    def decode(depth):
        cache = filled_cache(model, depth, depth + args.steps + WARM_UP, args.device)
        times = [forward(step, ids(1), cache) for _ in range(args.steps + WARM_UP)][WARM_UP:]
        return answer(ms=[t * 1e3 for t in times])

    def prefill(tokens):
        return answer(seconds=forward(model, ids(tokens), DynamicCache(config=model.config)))

    prefill(64)  # warms up
    results.answer_turns({"decode": decode, "prefill": prefill})


def load(path, dtype):
    """By hand, as from_pretrained(gguf_file=) wants a tokenizer and accelerate"""
    fields = gguf.GGUFReader(path).fields
    value = lambda key: fields["llama." + key].contents()
    config = dict(model_type="llama", hidden_size=value("embedding_length"), num_hidden_layers=value("block_count"),
                  intermediate_size=value("feed_forward_length"), num_attention_heads=value("attention.head_count"),
                  num_key_value_heads=value("attention.head_count_kv"), head_dim=value("attention.key_length"),
                  vocab_size=value("vocab_size"), max_position_embeddings=value("context_length"),
                  rope_theta=value("rope.freq_base"), rms_norm_eps=value("attention.layer_norm_rms_epsilon"), tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="sdpa", dtype=dtype)
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    model.load_state_dict(make_models.weights_of_gguf(path, config, shapes), strict=False)
    model.tie_weights()
    return model


def filled_cache(model, depth, room, device):
    config, cache = model.config, StaticCache(config=model.config, max_cache_len=room)
    for layer in cache.layers:
        random = torch.randn(1, config.num_key_value_heads, depth, config.head_dim, dtype=model.dtype, device=device)
        layer.update(random, random)
    return cache


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=16)
    return parser.parse_args()


main()
