"""What run.sh measures, draws and writes down.

    tiers.py --bin build/bin --folder FOLDER --document TEXT [--spill FOLDER] [--only PART]... [--quick] [--fresh]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(HERE.parent))
import results

PARTS = ("disk", "hits", "sizes", "long", "budget", "million")
MANAGERS = ("lru", "bucketed")
NAMES = {"lru": "exact LRU", "bucketed": "recency buckets", "belady": "Belady's optimum"}
MODEL = ROOT / "samples" / "model" / "needle-f16.gguf"


def main():
    args = arguments()
    log = results.Log(args.out / "tiers.jsonl", results.command_line("tests/bench/tiers/run.sh"),
                      {"context": args.context, "long": args.long, "steps": args.steps}, args.fresh)
    for part in PARTS:
        if part in args.only:
            globals()[part](args, log)
    report(args, log)


# ---- measurements ----

def disk(args, log):
    if not log.has(("disk",)):
        log.add(("disk",), {"lines": lines_of([args.bin / "spill_bench", "--folder", args.spill, "--request", "4096,16384,65536",
                                               "--in-flight", 64, "--threads", 16, "--step", 4096, "--seconds", 2])})


def hits(args, log):
    for context in (args.context, args.long):
        if not log.has(("hits", context)):
            log.add(("hits", context), {"lines": lines_of([args.bin / "hits_bench", "--model", MODEL, "--document", args.document,
                                                           "--context", context, "--steps", args.steps])})


def sizes(args, log):
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5):
        for manager in MANAGERS:
            sample(args, log, ("sizes", share, manager), args.context, share, manager)


def long(args, log):
    sample(args, log, ("long",), args.long, 0.1, "lru")


def sample(args, log, key, context, share, manager):
    """The sample model reads the document; a line with everything in memory, one with that share."""
    if log.has(key):
        return
    memory, tiers = lines_of([args.bin / "wi_bench", "--model", MODEL, "--fill", "prefill", "--document", args.document, "--context", context,
                              "--policy", "wave", "--kv-fast", share, "--manager", manager, "--spill", args.spill, "--steps", args.steps,
                              "--no-check"])
    log.add(key, {"memory": memory, "tiers": tiers})
    print(f"{key}: hits {tiers['hit_ratio']:.3f}, {tiers['ms_per_token_p50']:.2f} ms, {memory['ms_per_token_p50']:.2f} in memory", flush=True)


def budget(args, log):
    shape(args, log, "budget", *(("tiny", "q8_0", args.context, 64) if args.quick else ("llama-8b", "q4_k", 131072, 4096)))


def million(args, log):
    shape(args, log, "million", *(("tiny", "q8_0", 2 * args.context, 64) if args.quick else ("llama-1b", "q8_0", 1 << 20, 12288)))


def shape(args, log, part, name, weights, context, megabytes):
    if log.has((part,)):
        return
    begin = time.monotonic()
    line, = lines_of([args.bin / "wi_bench", "--shape", name, "--weights", weights, "--policy", "wave", "--context", context, "--kv-budget",
                      megabytes, "--spill", args.spill, "--steps", 20, "--no-check"])
    log.add((part,), {**line, "seconds": time.monotonic() - begin})
    print(f"{part}: {line['ms_per_token_p50']:.0f} ms, {time.monotonic() - begin:.0f} s in all", flush=True)


# ---- report ----

def report(args, log):
    sections = ["The sample model's tokens were the same as with everything in memory (`wi_bench` compares). The file is read past the page cache "
                "(O_DIRECT). Hits are shares of the clusters that steps retrieved. Reproduce a line with the `wi_bench` or `hits_bench` "
                "command that `tiers.py` names."]
    entries = log.entries
    if log.has(("disk",)):
        rows = [[line["way"], results.size(line["request_bytes"]), f"{line['requests_per_s']:,}", f"{line['mb_per_s']:.0f}"]
                for line in entries[("disk",)]["lines"]]
        sections.append("## The disk\n\n64 reads in flight.\n\n" + results.table(["by", "bytes", "reads/s", "MB/s"], rows))
    if log.has(("hits", args.context)):
        sections.append(hits_section(args, log))
    measured = [(key[1], key[2], entry) for key, entry in entries.items() if key[0] == "sizes"]
    if measured:
        rows = [[f"{100 * share:g} %", NAMES[manager], *times(entry)] for share, manager, entry in measured]
        sections.append(f"## The sample model at {results.size(args.context)} tokens\n\n" +
                        results.table(["in memory", "manager", *TIMES], rows))
    if log.has(("long",)):
        sections.append(f"## At {results.size(args.long)} tokens, 10 % in memory\n\n" + results.table(TIMES, [times(entries[("long",)])]))
    rows = [[entries[(part,)]["shape"], results.size(entries[(part,)]["context"]), *budgets(entries[(part,)])]
            for part in ("budget", "million") if log.has((part,))]
    if rows:
        sections.append("## Shapes within a budget\n\nRandom weights, synthetic cache: queries without locality, so that hits are few; tokens are not compared, "
                        "since all in memory would not fit. The "
                        "budget holds keys, values, indexes and scratch; beside it are weights and the program.\n\n" +
                        results.table(["shape", "tokens", "budget", "its peak", "in the file", "process, at most", "ms a token", "reads a token",
                                       "prepared in"], rows))
    results.write_markdown(args.out / "tiers.md", "Larger than memory", log, sections)
    print((args.out / "tiers.md").read_text())


TIMES = ["hits", "ms a token", "all in memory", "ratio", "misses a token", "of that time in the file"]


def times(entry):
    tiers, memory = entry["tiers"], entry["memory"]
    ratio = tiers["ms_per_token_p50"] / memory["ms_per_token_p50"]
    return [f"{tiers['hit_ratio']:.3f}", f"{tiers['ms_per_token_p50']:.2f}", f"{memory['ms_per_token_p50']:.2f}", f"{ratio:.2f} ×",
            f"{tiers['misses_per_token']:.0f}", f"{tiers['slow_read_ms']:.2f} ms"]


def budgets(line):
    gb = lambda key: f"{line[key] / 1e9:.2f} GB"
    return [gb("kv_budget_bytes"), gb("kv_peak_bytes"), gb("slow_bytes"), gb("peak_rss_bytes"), f"{line['ms_per_token_p50']:.0f}",
            f"{line['slow_reads_per_token']:,.0f}", f"{line['seconds']:.0f} s"]


def hits_section(args, log):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    contexts = [context for context in (args.context, args.long) if log.has(("hits", context))]
    figure, axes = plt.subplots(1, len(contexts), figsize=(5 * len(contexts), 4), dpi=130, sharey=True, squeeze=False)
    rows = []
    for axis, context in zip(axes[0], contexts):
        lines = log.entries[("hits", context)]["lines"]
        for manager in NAMES:
            points = [(100 * line["share"], line["hit_ratio"]) for line in lines if line["manager"] == manager]
            axis.plot(*zip(*points), marker="o", markersize=4, label=NAMES[manager] + ", played the trace")
            rows.append([results.size(context), NAMES[manager], *(f"{ratio:.3f}" for _, ratio in points)])
        shares = [f"{share:g} %" for share, _ in points]
        if context == args.context:
            for manager in MANAGERS:
                points = sorted((100 * key[1], entry["tiers"]["hit_ratio"]) for key, entry in log.entries.items()
                                if key[0] == "sizes" and key[2] == manager)
                if points:
                    axis.plot(*zip(*points), marker="x", linestyle=":", label=NAMES[manager] + ", measured")
        axis.set(xscale="log", xlabel="share of the sealed keys and values in memory, %", title=f"{results.size(context)} tokens", ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    axes[0][0].set_ylabel("hit ratio")
    figure.tight_layout()
    figure.savefig(args.out / "tiers-hits.png")
    return (f"## Hit ratio over the cache's size\n\nWhat {args.steps} steps of the sample model wanted, played to each manager and to one that "
            "knows the future; the first quarter fills the cache and does not count.\n\n" +
            results.table(["tokens", "manager", *shares], rows) + "\n\n![hit ratio over size](tiers-hits.png)")


def lines_of(command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"tiers.py: {' '.join(map(str, command))}: exit {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for results of --quick")
    parser.add_argument("--document", type=pathlib.Path, required=True)
    parser.add_argument("--spill", type=pathlib.Path, default=pathlib.Path("/var/tmp"))
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    args.context, args.long, args.steps = (8192, 16384, 40) if args.quick else (32768, 131072, 400)
    args.only = args.only or list(PARTS)
    args.out = args.folder if args.quick else ROOT / "docs" / "results"
    os.makedirs(args.out, exist_ok=True)
    return args


main()
