"""Runs wi_bench and llama.cpp on one file, alternating, and prints each measurement and the ratios.

    compare.py --bench WI_BENCH [--shape small] [--weights f16] [--rounds 3] [--threads 2] [--folder DIR]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DECODE = (64, 8192)
PREFILL = 2048


def one(command):
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--shape", default="small")
    parser.add_argument("--weights", default="f16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()
    model = os.path.join(args.folder, f"{args.shape}-{args.weights}.gguf")
    if not os.path.exists(model):
        subprocess.run([sys.executable, os.path.join(HERE, "make_shape.py"), args.shape, args.weights, model + ".part"], check=True)
        os.rename(model + ".part", model)

    ours, theirs = {}, {}  # (context, what) -> values; theirs: per flash setting
    for _ in range(args.rounds):
        for context in sorted({*DECODE, PREFILL}):
            line = one([args.bench, "--model", model, "--policy", "wave", "--context", str(context), "--steps", str(args.steps), "--threads",
                        str(args.threads), "--fill", "prefill", "--no-check"])[0]
            print(json.dumps({"runtime": "waveinfer", **line}), flush=True)
            ours.setdefault((context, "ms"), []).append(line["ms_per_token_p50"])
            ours.setdefault((context, "prefill"), []).append(line["prefill_tokens_per_second"])
            for flash in (0, 1):
                line = one([sys.executable, os.path.join(HERE, "llama_cpp_step.py"), model, str(context), str(args.steps), str(args.threads), str(flash)])[0]
                print(json.dumps(line), flush=True)
                theirs.setdefault((context, "ms", flash), []).append(line["ms_per_token_p50"])
                theirs.setdefault((context, "prefill", flash), []).append(line["prefill_tokens_per_second"])

    print(f"\n{args.shape} {args.weights}, {args.threads} threads, medians of {args.rounds} alternating rounds; llama.cpp's better flash setting counts")
    for context in DECODE:
        mine = statistics.median(ours[context, "ms"])
        other = min(statistics.median(theirs[context, "ms", flash]) for flash in (0, 1))
        print(f"decode at {context:5d} tokens: waveinfer {mine:8.2f} ms, llama.cpp {other:8.2f} ms, {other / mine:5.2f} x")
    mine = statistics.median(ours[PREFILL, "prefill"])
    other = max(statistics.median(theirs[PREFILL, "prefill", flash]) for flash in (0, 1))
    print(f"prefill of {PREFILL} tokens:  waveinfer {mine:8.1f} t/s, llama.cpp {other:7.1f} t/s, {mine / other:5.2f} x")


main()
