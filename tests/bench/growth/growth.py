"""Sweeps wi_bench over context, batch and threads, and times the first token of a cold and a warm start.

    growth.py --bin build/bin [--shape small] [--weights q8_0] [--most TOKENS] [--only PART]... [--quick]

Contexts are synthetic (keys and values of a random topic walk, sealed and indexed as any other), so that a million tokens
take minutes. Each figure is of a process of its own; its spread is over the steps.
"""
import argparse
import ctypes
import mmap
import os
import pathlib
import select
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path += [str(HERE.parent), str(HERE.parent / "peers")]
import json

import results

POLICIES = ("full", "wave")
PARTS = ("context", "batch", "threads", "start")


def main():
    args = arguments()
    log = results.Log(args.out / "growth.jsonl", results.command_line("tests/bench/growth/run.sh"),
                      {"shape": args.shape, "weights": args.weights, "threads": args.threads, "steps": args.steps}, args.fresh)
    if not log.has(("bandwidth",)):
        log.add(("bandwidth",), {"gb_per_s": lines_of([args.bin / "attention_bench", "--context", 1024, "--threads", args.threads])[0]["memory_gb_per_s"]})
    batch_context, threads_context = (1024, 1024) if args.quick else (16384, 65536)
    plan = [("context", policy, context, 1, args.threads) for context in powers(1024, args.most, 4) for policy in POLICIES]
    plan += [("batch", policy, batch_context, batch, args.threads) for batch in powers(1, 16, 2) for policy in POLICIES]
    plan += [("threads", policy, threads_context, 1, threads) for threads in powers(1, args.threads, 2, last=True) for policy in POLICIES]
    for key in plan:
        if key[0] in args.only and not log.has(key):
            measure(args, log, key)
    if "start" in args.only and not log.has(("start",)):
        start(args, log)
    report(args, log)


def measure(args, log, key):
    _, policy, context, batch, threads = key
    begin = time.monotonic()
    line = lines_of([args.bin / "wi_bench", "--shape", args.shape, "--weights", args.weights, "--policy", policy, "--context", context,
                     "--batch", batch, "--threads", threads, "--steps", args.steps, "--no-check"])[0]
    log.add(key, line)
    print(f"{key[0]}: {policy}, {results.size(context)} tokens, batch {batch}, threads {threads}: {line['ms_per_token_p50']:.2f} ms, of it "
          f"{line['attention_ms']:.2f} attention ({time.monotonic() - begin:.0f} s)", flush=True)


# ---- first token ----

def start(args, log):
    """From the program's start to the first byte of its answer (build/bin/embed), the model's file in the page cache or not"""
    path = model_file(args)
    times = {"cold": [], "warm": []}
    for _ in range(args.starts):
        if (resident := drop(path)) > 0.01:
            print(f"start: {resident:.0%} of {path.name} stay in the page cache, and dropping all of it needs root: no cold start", flush=True)
        else:
            times["cold"].append(first_byte(args, path))
        path.read_bytes()
        times["warm"].append(first_byte(args, path))
    log.add(("start",), {"seconds": times, "file_bytes": path.stat().st_size})
    print(f"start: {times}", flush=True)


def drop(path):
    """Takes a file out of the page cache; the share that stays. Its owner may, without root; root may drop all."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if resident_share(path) > 0.01:
        try:
            os.sync()
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")
        except OSError:
            pass
    return resident_share(path)


def resident_share(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
        pages = (len(memory) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        flags, address = (ctypes.c_ubyte * pages)(), ctypes.addressof(start_of := ctypes.c_char.from_buffer(memory))
        if ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), flags):
            raise OSError(ctypes.get_errno(), "mincore")
        del start_of
        return sum(flag & 1 for flag in flags) / pages


def first_byte(args, path):
    begin = time.perf_counter()
    # stdbuf: the sample's own output waits in a buffer until it ends
    program = subprocess.Popen(["stdbuf", "-o0", args.bin / "embed", path, "Once upon a time"], stdout=subprocess.PIPE)
    ready, _, _ = select.select([program.stdout], [], [], 600)
    seconds = time.perf_counter() - begin
    answered = bool(ready) and bool(os.read(program.stdout.fileno(), 1))
    program.kill()
    program.wait()
    if not answered:
        raise SystemExit(f"{args.bin / 'embed'} {path} writes nothing")
    return seconds


def model_file(args):
    path = args.folder / f"{args.shape}-{args.weights}.gguf"
    if not path.exists():
        print(f"writing {path.name} (random weights)", flush=True)
        part = path.with_suffix(".part")
        subprocess.run([sys.executable, HERE.parent / "peers" / "make_shape.py", args.shape, args.weights, part], check=True)
        part.rename(path)
    return path


# ---- report ----

def report(args, log):
    part = lambda name: {key[1:]: line for key, line in log.entries.items() if key[0] == name}
    sections = [f"`{args.shape}` shape, random weights in {args.weights}, f16 KV, {args.threads} threads, medians of {args.steps} steps. Memory "
                f"bandwidth measured in this run: {log.entries[('bandwidth',)]['gb_per_s']:.1f} GB/s read."]
    if lines := part("context"):
        sections += context_section(args, log, lines)
    if lines := part("batch"):
        sections.append(table_over("batch", 2, lines, "## Batch", f"{results.size(next(iter(lines))[1])} tokens of context in each session."))
    if lines := part("threads"):
        sections.append(table_over("threads", 3, lines, "## Threads", f"{results.size(next(iter(lines))[1])} tokens of context."))
    if log.has(("start",)):
        sections.append(start_section(log.entries[("start",)]))
    results.write_markdown(args.out / "growth.md", "How a decode step grows", log, sections)
    print((args.out / "growth.md").read_text())


def context_section(args, log, lines):
    rows = []
    for (policy, context, *_), line in sorted(lines.items(), key=lambda item: (item[0][1], item[0][0])):
        rows.append([results.size(context), policy] + [results.short(line[name]) for name in ("ms_per_token_p50", "ms_per_token_p99", "attention_ms", "weights_ms")] +
                    [results.short(line[name] / 1e6) for name in ("kv_bytes_read_per_token", "index_bytes", "kv_bytes", "peak_rss_bytes")])
    table = results.table(["context", "policy", "ms per token", "p99", "of it attention", "weights", "read per token, MB", "index, MB", "KV and index, MB",
                           "peak memory, MB"], rows)
    curve = lambda policy, name, scale=1.0: [(key[1], line[name] * scale) for key, line in lines.items() if key[0] == policy and line[name] > 0]
    slopes = []
    for name, title in (("ms_per_token_p50", "ms per token"), ("attention_ms", "attention, ms"), ("kv_bytes_read_per_token", "bytes read per token")):
        for policy in POLICIES:
            points = sorted(curve(policy, name))
            above = [point for point in points if point[0] >= 16384]
            slopes.append([f"{title}, {policy}", f"{results.slope(points):.2f}", f"{results.slope(above):.2f}" if len(above) > 1 else ""])
    rate = log.entries[("bandwidth",)]["gb_per_s"] * 1e6  # bytes per ms
    limit = [(context, line["kv_bytes_read_per_token"] / rate) for (policy, context, *_), line in lines.items() if policy == "full"]
    series = [{"label": f"{policy}, {title}{note(curve(policy, name))}", "points": curve(policy, name)} for name, title in
              (("ms_per_token_p50", "whole step"), ("attention_ms", "attention")) for policy in POLICIES]
    results.plot(args.out / "growth-context.png", f"decode, {args.shape} {args.weights}, {args.threads} threads",
                 series + [{"label": f"all KV read at {rate / 1e6:.1f} GB/s", "style": "line", "points": limit}])
    series = [{"label": f"{policy}, read per token{note(curve(policy, 'kv_bytes_read_per_token'))}", "points": curve(policy, "kv_bytes_read_per_token", 1e-6)}
              for policy in POLICIES]
    series.append({"label": f"wave, index held{note(curve('wave', 'index_bytes'))}", "points": curve("wave", "index_bytes", 1e-6)})
    results.plot(args.out / "growth-bytes.png", f"bytes, {args.shape}", [one for one in series if one["points"]], y_label="MB")
    return ["## Context\n\n" + table, "Slopes on log-log axes (1: in proportion to the context, 0: not at all):\n\n" +
            results.table(["", "whole range", "from 16K"], slopes), "![ms per token over context](growth-context.png)", "![bytes over context](growth-bytes.png)"]


def note(points):
    above = [point for point in points if point[0] >= 16384]
    return f" (slope {results.slope(above):.2f} from 16K)" if len(above) > 1 else ""


def table_over(name, position, lines, title, text):
    rows, ones = [], {}
    for key, line in sorted(lines.items(), key=lambda item: (item[0][0], item[0][position])):
        policy, value = key[0], key[position]
        ones.setdefault(policy, line["tokens_per_second"])
        rows.append([value, policy, results.short(line["ms_per_token_p50"]), results.short(line["attention_ms"]), results.short(line["weights_ms"]),
                     results.short(line["tokens_per_second"]), f"{line['tokens_per_second'] / ones[policy]:.2f}", results.short(line["peak_rss_bytes"] / 1e6)])
    return f"{title}\n\n{text}\n\n" + results.table([name, "policy", "ms per step", "attention, ms", "weights, ms", "tokens/s", "over the first", "peak memory, MB"], rows)


def start_section(entry):
    text = (f"## Start\n\nFrom the start of `build/bin/embed` to the first byte of its answer, a model of {entry['file_bytes'] / 1e6:.0f} MB. Cold: the "
            "model's file is not in the page cache (checked with mincore; a virtual machine's host may still have it). Seconds.\n\n")
    rows = [[name, str(results.Spread(values)) if values else "not measured: dropping the page cache needs root here"]
            for name, values in entry["seconds"].items()]
    return text + results.table(["page cache", "first token"], rows)


def powers(low, high, factor, last=False):
    found = []
    while low <= high:
        found.append(low)
        low *= factor
    return found + [high] if last and found[-1] != high else found


def lines_of(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\nreturned {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "peers-models", help="for the models")
    parser.add_argument("--out", type=pathlib.Path, help="default: docs/results; with --quick: --folder")
    parser.add_argument("--shape")
    parser.add_argument("--weights", default="q8_0")
    parser.add_argument("--most", type=int)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="tiny model, up to 16K tokens: whether it works")
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    args.shape = args.shape or ("tiny" if args.quick else "small")
    args.most = args.most or (16384 if args.quick else 1 << 20)
    args.only = args.only or list(PARTS)
    args.folder.mkdir(parents=True, exist_ok=True)
    args.out = args.out or (args.folder if args.quick else ROOT / "docs" / "results")
    return args


main()
