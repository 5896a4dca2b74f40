"""One pass of llama.cpp over a prompt: prints one JSON object per measurement.

    llama_cpp_pass.py MODEL --threads N --flash 0|1 [--prefill N,N…] [--decode DEPTH,DEPTH…] [--steps N]

The prompt is read once, in batches of 512; prefill's times are sums up to each mark, and steps are decoded at each depth on
the way and then taken back. Weights are read into memory, not mapped. Depths below 512 come first, on a prompt of their own.
"""
import argparse
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parents[1] / "support")]
import llama
import results
from llama import llama_cpp

BATCH, WARM_UP = 512, 3


def main():
    args = arguments()
    model = llama.Model(args.model, copied=True)
    ctx = model.context(max(args.prefill + args.decode) + args.steps + WARM_UP + 8, BATCH, args.threads, bool(args.flash))
    if not ctx:
        raise SystemExit(f"llama.cpp makes no context, flash {args.flash}")
    memory = llama_cpp.llama_get_memory(ctx)

    def decode(ids):
        array = (llama_cpp.llama_token * len(ids))(*ids)  # the batch only points to it
        start = time.perf_counter()
        status = llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(array, len(ids)))
        if status:
            raise SystemExit(f"llama_decode returned {status}")
        llama_cpp.llama_get_logits(ctx)[0]  # waits for the result
        return time.perf_counter() - start

    def decode_steps(depth):
        times = [decode([(step * 31 + 7) % 32000]) for step in range(args.steps + WARM_UP)][WARM_UP:]
        report("decode", depth, ms=[t * 1e3 for t in times])
        if not llama_cpp.llama_memory_seq_rm(memory, 0, depth, -1):
            raise SystemExit("llama.cpp takes no tokens back")

    def report(what, tokens, **values):
        print(json.dumps({"what": what, "tokens": tokens, **values, "peak_rss_bytes": results.peak_rss_bytes()}), flush=True)

    prompt = [(i * 7919 + 13) % 32000 for i in range(max(args.prefill + args.decode))]
    decode(prompt[:BATCH])  # warms up
    for depth in [depth for depth in args.decode if depth < BATCH]:
        llama_cpp.llama_memory_clear(memory, True)
        decode(prompt[:depth])
        decode_steps(depth)
    llama_cpp.llama_memory_clear(memory, True)
    seconds = 0
    for first in range(0, len(prompt), BATCH):
        if first + BATCH > len(prompt):
            break
        seconds += decode(prompt[first:first + BATCH])
        if first + BATCH in args.prefill:
            report("prefill", first + BATCH, seconds=seconds)
        if first + BATCH in args.decode:
            decode_steps(first + BATCH)


def arguments():
    numbers = lambda text: [int(word) for word in text.split(",") if word]
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--flash", type=int, default=0)
    parser.add_argument("--prefill", type=numbers, default=[])
    parser.add_argument("--decode", type=numbers, default=[])
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()
    for tokens in args.prefill + [depth for depth in args.decode if depth > BATCH]:
        if tokens % BATCH:
            parser.error(f"{tokens} is no multiple of {BATCH}")
    return args


main()
