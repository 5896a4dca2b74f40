"""waveinfer, llama.cpp and transformers on one file's weights, alternating; writes docs/results/peers.{jsonl,md} and plots.

    compare.py --bin build/bin [--shape small] [--weights f16,q8_0] [--rounds 5] [--budget MINUTES] [--only WORD]... [--quick]

Every round runs each contestant in a process of its own, starting with another one each time. Short contexts come first, in
all rounds; then the long prompts, as often as the time that is left allows, up to the number of rounds. What they do not
reach is on a line fitted through what was measured, and marked. A run that was broken off goes on where it stopped.
--only takes a contestant, a weight type, or one of the parts "short" and "long"; the tables hold all that the log has.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(HERE.parent))
import results

LLAMA = {"llama.cpp": 0, "llama.cpp flash": 1}
OURS = {"waveinfer full": "full", "waveinfer wave": "wave"}
TORCH = {"transformers": "cpu", "transformers GPU": "cuda"}
# (prefill, decode) of a part. waveinfer and transformers decode behind a cache filled with random numbers, at any depth;
# llama.cpp has to read a prompt to get there.
FULL_SIZE = {"short": ((512, 2048, 8192), (64, 1024, 4096, 8192)), "long": ((16384,), (16384,)), "filled": (16384, 32768)}
QUICK = {"short": ((512, 1024), (64, 1024)), "long": ((2048,), (2048,)), "filled": (2048, 4096)}


def main():
    args = arguments()
    started = time.monotonic()
    parts = QUICK if args.quick else FULL_SIZE
    log = results.Log(args.out / "peers.jsonl", results.command_line("tests/bench/peers/run.sh"),
                      {"shape": args.shape, "threads": args.threads, "steps": args.steps, "quick": args.quick, "load": "copied"},
                      args.fresh)
    files = {weights: model_file(args, weights) for weights in args.weights}
    log.head["files"] = {weights: path.stat().st_size for weights, path in files.items()}
    contestants = [*OURS, *LLAMA, *(name for name, device in TORCH.items() if device == "cpu" or gpu())]
    costs = {}  # (weights, contestant, part) -> seconds

    def measure(weights, contestant, part, number):
        named = all(word in args.only or not args.only & set(group)
                    for word, group in ((contestant, contestants), (weights, args.weights), (part, parts)))
        if not named or log.has((weights, contestant, part, number)):
            return
        begin = time.monotonic()
        lines = run(args, contestant, files[weights], part, parts)
        costs[weights, contestant, part] = time.monotonic() - begin
        log.add((weights, contestant, part, number), {"lines": lines})
        print(f"[{(time.monotonic() - started) / 60:5.1f} min] {weights} {contestant}, {part}, round {number + 1}: {summary(lines)}", flush=True)

    if not log.has(("bandwidth",)):
        log.add(("bandwidth",), {"gb_per_s": bandwidth(args)})
    for weights, number in itertools.product(args.weights, range(args.rounds)):
        for contestant in rotated(runners(contestants, weights, args.weights), number):
            measure(weights, contestant, "short", number)
    for number, weights in itertools.product(range(args.rounds), args.weights):
        names = [name for name in better_flash(log, contestants, weights, parts) if name != "waveinfer full"]  # nothing left for it
        for contestant in rotated(runners(names, weights, args.weights), number):
            left = args.budget * 60 - (time.monotonic() - started)
            if (cost := costs.get((weights, contestant, "long"), expected(log, weights, contestant, parts))) < left:
                measure(weights, contestant, "long", number)
            elif not log.has((weights, contestant, "long", number)):
                print(f"left out: {weights} {contestant}, long, round {number + 1}: about {cost:.0f} s, {max(left, 0):.0f} s left of --budget",
                      flush=True)
    report(args, log, parts)


def runners(contestants, weights, all_weights):
    """PyTorch computes with the same bf16 weights whatever the file's type: once is enough."""
    return [name for name in contestants if name not in TORCH or weights == all_weights[0]]


def rotated(names, number):
    return names[number % len(names):] + names[:number % len(names)]


def run(args, contestant, path, part, parts):
    """The measurements of one process (waveinfer: one process each, so that each has its own peak of memory)"""
    prefill, decode = parts[part]
    if contestant in LLAMA:
        return lines_of([sys.executable, HERE / "llama_cpp_pass.py", path, "--threads", args.threads, "--flash", LLAMA[contestant],
                         "--prefill", joined(prefill), "--decode", joined(decode), "--steps", args.steps])
    depths = (*decode, *parts["filled"]) if part == "short" else ()
    if contestant in TORCH:
        return lines_of([sys.executable, HERE / "transformers_pass.py", path, "--threads", args.threads, "--device", TORCH[contestant],
                         "--prefill", joined(prefill), "--decode", joined(depths), "--steps", args.steps])
    bench = lambda context, fill, steps: lines_of([args.bin / "wi_bench", "--model", path, "--load", "copied", "--policy", OURS[contestant],
                                                   "--context", context, "--steps", steps, "--threads", args.threads, "--fill", fill,
                                                   "--no-check"])[0]
    lines = []
    for depth in depths:
        one = bench(depth, "synthetic", args.steps)
        lines.append({"what": "decode", "tokens": depth, "ms": [one["ms_per_token_p50"]], "peak_rss_bytes": one["peak_rss_bytes"]})
    for tokens in prefill if contestant == "waveinfer wave" else ():  # its index is built on the way, so it is the dearer one
        one = bench(tokens, "prefill", 1)
        lines.append({"what": "prefill", "tokens": tokens, "seconds": one["prefill_ms"] / 1e3, "peak_rss_bytes": one["peak_rss_bytes"]})
    return lines


def lines_of(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\nreturned {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def bandwidth(args):
    """What this machine reads from memory, by attention_bench's own measure: the median of 15 reads of 256 MB"""
    return lines_of([args.bin / "attention_bench", "--context", 1024, "--threads", args.threads, "--repeat", 15])[0]["memory_gb_per_s"]


def gpu():
    """Asked of another process: what this one imports, and so its size, would count in its children's peak of memory"""
    return subprocess.run([sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]).returncode == 0


def model_file(args, weights):
    path = args.folder / f"{args.shape}-{weights}.gguf"
    if not path.exists():
        print(f"writing {path.name} (random weights)", flush=True)
        part = path.with_suffix(".part")
        subprocess.run([sys.executable, HERE / "make_shape.py", args.shape, weights, part], check=True)
        part.rename(path)
    return path


def joined(numbers):
    return ",".join(map(str, numbers))


def summary(lines):
    return "; ".join(f"prefill {results.size(l['tokens'])} {l['tokens'] / l['seconds']:.0f} t/s" if l["what"] == "prefill" else
                     f"decode {results.size(l['tokens'])} {statistics.median(l['ms']):.1f} ms" for l in lines)


# ---- what the log says ----

def values(log, weights, contestant, what):
    """tokens -> one value a round: ms per token (the median of a round's steps) or tokens/s of prefill"""
    found = {}
    for key, entry in log.entries.items():
        if key[:2] == (weights, contestant):
            for line in entry["lines"]:
                if line["what"] == what:
                    value = statistics.median(line["ms"]) if what == "decode" else line["tokens"] / line["seconds"]
                    found.setdefault(line["tokens"], []).append(value)
    return found


def memory(log, weights, contestant, depth):
    peaks = [line["peak_rss_bytes"] for key, entry in log.entries.items() if key[:2] == (weights, contestant)
             for line in entry["lines"] if line["what"] == "decode" and line["tokens"] == depth]
    return statistics.median(peaks) if peaks else None


def better_flash(log, contestants, weights, parts):
    """The long prompts are read with flash attention on or off, whichever was faster at the longest short one; both if they
    disagree on prefill and decode."""
    deepest = parts["short"][0][-1]
    best = set()
    for what, better in (("prefill", max), ("decode", min)):
        medians = {name: statistics.median(v[deepest]) for name in LLAMA if deepest in (v := values(log, weights, name, what))}
        best |= {better(medians, key=medians.get)} if medians else set(LLAMA)
    return [name for name in contestants if name not in LLAMA or name in best]


def expected(log, weights, contestant, parts):
    """Seconds for the long part before it was ever run: prefill's times so far, carried on as a n + b n^2"""
    prompts = parts["long"][0]
    curve = fit_prefill(log, weights, contestant)
    if not curve:
        return 0
    return 1.1 * (curve(max(prompts)) if contestant in LLAMA else sum(map(curve, prompts))) + 10


def fit_prefill(log, weights, contestant):
    """seconds over tokens, a n + b n^2 with neither below 0, from the medians"""
    import numpy as np
    points = [(n, n / statistics.median(v)) for n, v in values(log, weights, contestant, "prefill").items()]
    if len(points) < 2:
        return None
    n, seconds = (np.array(x, dtype=float) for x in zip(*points))
    a, b = np.linalg.lstsq(np.stack([np.ones_like(n), n], 1), seconds / n, rcond=None)[0]
    if a < 0 or b < 0:
        a, b = float(np.mean(seconds / n)), 0.0
    return lambda tokens: a * tokens + b * tokens ** 2


def fit_decode(medians):
    """ms over depth, a straight line that does not fall, through the medians; None from fewer than two"""
    import numpy as np
    if len(medians) < 2:
        return None
    b, a = np.polyfit(list(medians), list(medians.values()), 1)
    if b < 0:
        a, b = statistics.mean(medians.values()), 0.0
    return lambda depth: float(a + b * depth)


def report(args, log, parts):
    sections = [f"`{args.shape}` shape, random weights, {args.threads} threads. Median of the rounds (a round's value is the median of "
                f"{args.steps} steps), in brackets the least and the greatest. *Slanted*: from a fitted line, not measured. Ratios are the "
                "other's time over `wave`'s: above 1, waveinfer is faster. Both of llama.cpp's settings are shown; the better one of each "
                "row counts. Weights are read into memory when the file is opened, mapped by none (waveinfer: `--load copied`; llama.cpp: without "
                "mmap; transformers: always so). waveinfer and transformers decode behind a "
                "synthetic cache of the depth named, llama.cpp behind a prompt that it has read. Peak memory is the process's: weights, cache, and for the two others Python and what they import (PyTorch: most of "
                f"what its weights do not take). Memory bandwidth measured in this run: {log.entries[('bandwidth',)]['gb_per_s']:.1f} GB/s read."]
    contestants = [*OURS, *LLAMA, *TORCH]
    seen = list(dict.fromkeys(key[0] for key in log.entries if len(key) == 4))
    for weights in seen:
        names = [name for name in contestants if any(key[:2] == (weights, name) for key in log.entries)]
        first = [name for name in TORCH if name not in names and any(key[:2] == (seen[0], name) for key in log.entries)]
        sources = {name: weights for name in names} | {name: seen[0] for name in first}
        sections.append(f"## {weights}\n\n" + (f"transformers computes in bf16 whatever the file holds: as under {seen[0]}.\n\n" if first else "") +
                        decode_table(log, sources, parts) + "\n\n" + prefill_table(log, sources, parts) + "\n\n" +
                        memory_table(log, sources, parts) + f"\n\n![ms per token over context](peers-{weights}.png)")
        plot(args, log, sources, weights, parts)
    results.write_markdown(args.out / "peers.md", "waveinfer, llama.cpp and transformers side by side", log.head, sections)
    print((args.out / "peers.md").read_text())


def decode_table(log, sources, parts):
    depths = sorted({*parts["short"][1], *parts["filled"]})
    data = {name: values(log, weights, name, "decode") for name, weights in sources.items()}
    return compared("decode, ms per token at depth", depths, data, fitted_decode(data, depths), min, lambda other, ours: other / ours)


def fitted_decode(data, depths):
    fits = {}
    for name, found in data.items():
        line = fit_decode({depth: statistics.median(v) for depth, v in found.items()})
        fits[name] = {depth: line(depth) for depth in depths if depth not in found and line and depth > max(found)}
    return fits


def prefill_table(log, sources, parts):
    lengths = [n for n in (*parts["short"][0], *parts["long"][0])]
    data = {name: values(log, weights, name, "prefill") for name, weights in sources.items()}
    curves = {name: fit_prefill(log, weights, name) for name, weights in sources.items()}
    fits = {name: {n: n / curves[name](n) for n in lengths if n not in found and curves[name]} for name, found in data.items()}
    return compared("prefill, tokens/s of a prompt of", lengths, data, fits, max, lambda other, ours: ours / other)


def compared(title, rows, data, fits, better, ratio):
    """One row a context, one column a contestant, then the ratios of wave to the better llama.cpp and to transformers"""
    def best(names, row):
        """(value, whether it was measured); a fitted one counts where it is the better"""
        found = [(statistics.median(data[name][row]), True) for name in names if row in data[name]]
        found += [(fits[name][row], False) for name in names if row in fits[name]]
        return better(found) if found else (None, False)

    def cell(name, row):
        found, fitted = data[name].get(row), fits[name].get(row)
        return str(results.Spread(found)) if found else f"*{results.short(fitted)}*" if fitted else ""
    data = {name: found for name, found in data.items() if found}
    peers = {"llama.cpp": [n for n in LLAMA if n in data], "transformers": [n for n in data if n == "transformers"]}
    lines = []
    for row in rows:
        cells, (ours, known) = [results.size(row)] + [cell(name, row) for name in data], best(["waveinfer wave"], row)
        for names in peers.values():
            theirs, measured = best(names, row)
            text = f"{ratio(theirs, ours):.2f}" if theirs and ours else ""
            cells.append(text if known and measured or not text else f"*{text}*")
        lines.append(cells)
    return results.table([title, *data, *(f"{peer} : wave" for peer in peers)], lines)


def memory_table(log, sources, parts):
    depths = sorted({*parts["short"][1], *parts["filled"]})
    # llama.cpp's context is as long as its pass, so only the passes' own depths are its memory
    own = {part[1][-1] for part in (parts["short"], parts["long"])}
    cell = lambda name, weights, depth: (f"{peak / 1e6:,.0f}" if (name not in LLAMA or depth in own) and
                                         (peak := memory(log, weights, name, depth)) else "")
    return results.table(["peak memory at depth, MB", *sources],
                         [[results.size(d)] + [cell(name, weights, d) for name, weights in sources.items()] for d in depths])


def plot(args, log, sources, weights, parts):
    depths = sorted({*parts["short"][1], *parts["filled"]})
    data = {name: values(log, source, name, "decode") for name, source in sources.items()}
    fits = fitted_decode(data, depths)
    series = []
    for name, found in data.items():
        spreads = {depth: results.Spread(v) for depth, v in found.items()}
        series.append({"label": name, "points": [(d, s.median, s.low, s.high) for d, s in spreads.items()], "fitted": list(fits[name].items())})
    rate = log.entries[("bandwidth",)]["gb_per_s"] * 1e6  # bytes per ms
    size, per_token = model_file(args, weights).stat().st_size, kv_bytes_per_token(args.shape)
    series.append({"label": f"weights + whole KV at {rate / 1e6:.1f} GB/s", "style": "line",
                   "points": [(depth, (size + per_token * depth) / rate) for depth in depths]})
    results.plot(args.out / f"peers-{weights}.png", f"decode, {args.shape} {weights}, {args.threads} threads", series)


def kv_bytes_per_token(shape):
    sys.path.append(str(HERE))
    import make_shape
    layers, _, _, kv_heads, head_dim, _, _ = make_shape.SHAPES[shape]
    return layers * kv_heads * head_dim * 2 * 2  # keys and values, 16 bits


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "peers-models", help="for the models")
    parser.add_argument("--out", type=pathlib.Path, help="default: docs/results; with --quick: --folder")
    parser.add_argument("--shape")
    parser.add_argument("--weights", type=lambda text: text.split(","), default=["f16", "q8_0"])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--budget", type=float, default=25, help="minutes after which no long prompt is begun")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--quick", action="store_true", help="tiny model, one round: whether it works")
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    args.shape = args.shape or ("tiny" if args.quick else "small")
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.only = set(args.only)
    args.folder.mkdir(parents=True, exist_ok=True)
    args.out = args.out or (args.folder if args.quick else ROOT / "docs" / "results")
    return args


main()
