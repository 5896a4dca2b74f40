"""wi_bench at several contexts, taking turns: the ratio of one context's time per token to another's, on a machine whose
memory is not as fast in every minute. Options are wi_bench's; --context has the contexts, the first is what others are
compared with.

    tests/bench/turns.py [--bin build/bin] [--turns 7] --shape llama-1b --weights q8_0 --policy wave --context 1024,131072
"""
import argparse
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE))
import results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parents[1] / "build" / "bin")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--context", type=lambda text: [int(word) for word in text.split(",")], required=True)
    args, others = parser.parse_known_args()
    processes = {context: results.Contestant([args.bin / "wi_bench", *others, "--context", context, "--no-check", "--turns"])
                 for context in args.context}
    lines = {context: [] for context in processes}
    for _ in range(args.turns):
        for context, process in processes.items():
            lines[context].append(process.turn("decode", context))
    for process in processes.values():
        process.close()
    times = {context: [line["ms_per_token_p50"] for line in found] for context, found in lines.items()}
    rows = [[results.size(context), results.Spread(times[context]),
             results.short(statistics.median(line["attention_ms"] for line in lines[context])),
             f"{statistics.median(ours / first for ours, first in zip(times[context], times[args.context[0]])):.2f}"]
            for context in processes]
    print(results.table(["context", "ms per token", "of it attention", "over the first, turn by turn"], rows))


main()
