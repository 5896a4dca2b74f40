"""waveinfer, llama.cpp and transformers on one file's weights, taking turns; writes docs/results/peers.{jsonl,md} and plots.

    compare.py --bin build/bin [--shape small] [--weights f16,q8_0] [--rounds 5] [--budget MINUTES] [--only WORD]... [--quick]

Every contestant is a process that waits for its turn. A turn is one measurement, of some seconds at most where that can be,
and a round is a turn of each, starting with another one each time: what else the machine does then hits all alike. Short
contexts come first; prompts as long as minutes are read as often as the time that is left allows, up to the number of rounds.
What llama.cpp does not reach is on a line fitted through what was measured, and marked. A run that was broken off goes on
where it stopped. --only takes a contestant, a weight type, "decode" or "prefill"; the tables hold all that the log has.
"""
import argparse
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
HIGH = "waveinfer wave, high"  # WI_PRECISION_HIGH: differs in prefill alone
OURS = {"waveinfer full": "full", "waveinfer wave": "wave", HIGH: "wave"}
TORCH = {"transformers": "cpu", "transformers GPU": "cuda"}
# waveinfer and transformers decode behind a cache filled with random numbers, at any depth; llama.cpp has to read a prompt to
# get there: up to `read`, the longest with the better one of its settings alone.
FULL_SIZE = {"decode": (64, 1024, 4096, 8192, 16384, 32768), "prefill": (512, 2048, 8192, 16384), "read": 32768, "both": 8192}
QUICK = {"decode": (64, 1024, 2048, 4096), "prefill": (512, 1024, 2048), "read": 2048, "both": 1024}


def main():
    args = arguments()
    sizes = QUICK if args.quick else FULL_SIZE
    log = results.Log(args.out / "peers.jsonl", results.command_line("tests/bench/peers/run.sh"),
                      {"shape": args.shape, "threads": args.threads, "steps": args.steps, "quick": args.quick, "load": "copied", "turns": True},
                      args.fresh)
    files = {weights: model_file(args, weights) for weights in args.weights}
    contestants = [*OURS, *LLAMA, *(name for name, device in TORCH.items() if device == "cpu" or gpu())]
    for weights in args.weights:
        Match(args, log, sizes, weights, files[weights], runners(contestants, weights, args.weights)).run()
    report(args, log, sizes)


class Match:
    """All measurements of one file."""

    def __init__(self, args, log, sizes, weights, path, names):
        self.args, self.log, self.sizes, self.weights, self.path, self.names = args, log, sizes, weights, path, names
        self.started = time.monotonic()
        self.standing = {}  # processes that stay for all measurements

    def run(self):
        for depth in self.sizes["decode"]:
            if not self.log.has(("bandwidth", self.weights, depth)):
                self.log.add(("bandwidth", self.weights, depth), {"gb_per_s": bandwidth(self.args)})
            self.measure("decode", depth, [name for name in self.names if name != HIGH and
                                           (name not in LLAMA or name in self.readers(depth))])
        for tokens in self.sizes["prefill"]:  # wave's index is built on the way, so it is the dearer one of ours
            self.measure("prefill", tokens, [name for name in self.names if name != "waveinfer full" and
                                             (name not in LLAMA or name in self.readers(tokens))])
        for process in self.standing.values():
            process.close()

    def readers(self, tokens):
        if tokens > self.sizes["read"]:
            return []
        return LLAMA if tokens <= self.sizes["both"] else better_flash(self.log, self.weights, self.sizes["both"])

    def measure(self, what, tokens, names):
        todo = [(number, name) for number in range(self.args.rounds) for name in rotated(names, number)
                if self.wanted(what, name) and not self.log.has((self.weights, name, what, tokens, number))]
        own = {name: results.Contestant(self.command(what, tokens, name)) for name in OURS if any(name == n for _, n in todo)}
        for number, name in todo:
            left = self.args.budget * 60 - (time.monotonic() - self.started)
            if what == "prefill" and (cost := self.expected(name, tokens)) > left:
                print(f"left out: {self.weights} {name}, {what} of {tokens}, round {number + 1}: about {cost:.0f} s, "
                      f"{max(left, 0):.0f} s left of --budget", flush=True)
                continue
            line = (own.get(name) or self.stand(name)).turn(what, tokens)
            if name in OURS:
                line = {"what": what, "tokens": tokens, "peak_rss_bytes": line["peak_rss_bytes"],
                        **({"ms": [line["ms_per_token_p50"]]} if what == "decode" else {"seconds": line["prefill_ms"] / 1e3})}
            self.log.add((self.weights, name, what, tokens, number), line)
            print(f"[{(time.monotonic() - self.started) / 60:5.1f} min] {self.weights} {name}, round {number + 1}: {summary(line)}", flush=True)
        for process in own.values():
            process.close()

    def wanted(self, what, name):
        only = self.args.only
        return all(word in only or not only & set(group)
                   for word, group in ((name, [*OURS, *LLAMA, *TORCH]), (self.weights, self.args.weights), (what, ("decode", "prefill"))))

    def expected(self, name, tokens):
        """Seconds of a prompt: what it took before, or prefill's times so far, carried on as a n + b n^2"""
        found = values(self.log, self.weights, name, "prefill")
        if tokens in found:
            return tokens / min(found[tokens])
        curve = fit_prefill(self.log, self.weights, name)
        return 1.1 * curve(tokens) if curve else 0

    def stand(self, name):
        if name not in self.standing:
            self.standing[name] = results.Contestant(self.command(None, None, name))
        return self.standing[name]

    def repack(self):
        """Whether llama.cpp lays weights out anew for this processor, as it does by itself: wherever it survives that"""
        if not self.log.has((key := ("repack", self.weights))):
            tried = subprocess.run([str(word) for word in [*llama_cpp(self.args, self.path, 1024), "--repack", 1]], input="decode 64\n",
                                   capture_output=True, text=True)
            self.log.add(key, {"survives": tried.returncode == 0})
        return self.log.entries[key]["survives"]

    def command(self, what, tokens, name):
        args = self.args
        if name in OURS:
            return [args.bin / "wi_bench", "--model", self.path, "--load", "copied", "--policy", OURS[name], "--context", tokens, "--threads",
                    args.threads, "--no-check", "--turns", *(["--precision", "high"] if name == HIGH else []),
                    *(["--fill", "synthetic", "--steps", args.steps] if what == "decode" else ["--fill", "prefill", "--steps", 1])]
        if name in LLAMA:
            return [*llama_cpp(args, self.path, self.sizes["read"]), "--flash", LLAMA[name], "--repack", int(self.repack()), "--steps",
                    args.steps]
        return [sys.executable, HERE / "transformers_turns.py", self.path, "--threads", args.threads, "--device", TORCH[name], "--steps",
                args.steps]


def llama_cpp(args, path, room):
    return [sys.executable, HERE / "llama_cpp_turns.py", path, "--threads", args.threads, "--room", room]


def runners(contestants, weights, all_weights):
    """PyTorch computes with the same bf16 weights whatever the file's type: once is enough."""
    return [name for name in contestants if name not in TORCH or weights == all_weights[0]]


def rotated(names, number):
    return names[number % len(names):] + names[:number % len(names)]


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


def summary(line):
    size = results.size(line["tokens"])
    return (f"prefill {size} {line['tokens'] / line['seconds']:.0f} t/s" if line["what"] == "prefill" else
            f"decode {size} {statistics.median(line['ms']):.1f} ms")


# ---- what the log says ----

def values(log, weights, contestant, what):
    """tokens -> one value a round: ms per token (the median of a round's steps) or tokens/s of prefill"""
    found = {}
    for key, line in log.entries.items():
        if key[:3] == (weights, contestant, what):
            value = statistics.median(line["ms"]) if what == "decode" else line["tokens"] / line["seconds"]
            found.setdefault(line["tokens"], []).append(value)
    return found


def memory(log, weights, contestant, depth):
    peaks = [line["peak_rss_bytes"] for key, line in log.entries.items() if key[:4] == (weights, contestant, "decode", depth)]
    return statistics.median(peaks) if peaks else None


def better_flash(log, weights, deepest):
    """The longest prompt is read with flash attention on or off, whichever decoded faster at the longest short one."""
    medians = {name: statistics.median(v[deepest]) for name in LLAMA if deepest in (v := values(log, weights, name, "decode"))}
    return [min(medians, key=medians.get)] if medians else list(LLAMA)


def rates(log):
    """GB/s that plain reads got, at the beginning of each depth"""
    return results.Spread([line["gb_per_s"] for key, line in log.entries.items() if key[0] == "bandwidth"])


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


def report(args, log, sizes):
    sections = [f"`{args.shape}` shape, random weights, {args.threads} threads. The contestants take turns, one measurement each. Median of the "
                f"turns (a turn's value is the median of {args.steps} steps), in brackets the least and the greatest. *Slanted*: from a fitted "
                "line, not measured. Ratios are the other's time over `wave`'s: above 1, waveinfer is faster. Both of llama.cpp's settings are "
                "shown; the better one of each row counts. Weights are read into memory when the file is opened, mapped by none (waveinfer: "
                "`--load copied`; llama.cpp: without mmap; transformers: always so). waveinfer and transformers decode behind a synthetic cache "
                "of the depth named, llama.cpp behind a prompt that it has read. Peak memory is the process's: weights, cache, and for the two "
                "others Python and what they import (PyTorch: most of what its weights do not take). Plain reads of memory between the depths: "
                f"{rates(log)} GB/s. *wave, high* reads prompts with 16 significant bits of each number (WI_PRECISION_HIGH), our others "
                "with 8."]
    contestants = [*OURS, *LLAMA, *TORCH]
    seen = list(dict.fromkeys(key[0] for key in log.entries if key[0] not in ("bandwidth", "repack")))
    for weights in seen:
        names = [name for name in contestants if any(key[:2] == (weights, name) for key in log.entries)]
        first = [name for name in TORCH if name not in names and any(key[:2] == (seen[0], name) for key in log.entries)]
        sources = {name: weights for name in names} | {name: seen[0] for name in first}
        sections.append(f"## {weights}\n\n" + repacked(log, weights) + (f"transformers computes in bf16 whatever the file holds: as under {seen[0]}.\n\n" if first else "") +
                        decode_table(log, sources, sizes) + "\n\n" + prefill_table(log, sources, sizes) + "\n\n" +
                        memory_table(log, sources, sizes) + f"\n\n![ms per token over context](peers-{weights}.png)")
        plot(args, log, sources, weights, sizes)
    results.write_markdown(args.out / "peers.md", "waveinfer, llama.cpp and transformers side by side", log, sections)
    print((args.out / "peers.md").read_text())


def repacked(log, weights):
    if ("repack", weights) not in log.entries or log.entries["repack", weights]["survives"]:
        return ""
    return "llama.cpp's weights are not laid out anew for this processor, as they are by default: it crashes then.\n\n"


def decode_table(log, sources, sizes):
    depths = sizes["decode"]
    data = {name: values(log, weights, name, "decode") for name, weights in sources.items()}
    return compared("decode, ms per token at depth", depths, data, fitted_decode(data, depths), min, lambda other, ours: other / ours)


def fitted_decode(data, depths):
    fits = {}
    for name, found in data.items():
        line = fit_decode({depth: statistics.median(v) for depth, v in found.items()})
        fits[name] = {depth: line(depth) for depth in depths if depth not in found and line and depth > max(found)}
    return fits


def prefill_table(log, sources, sizes):
    lengths = sizes["prefill"]
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


def memory_table(log, sources, sizes):
    depths = sizes["decode"]
    # llama.cpp's context is as long as the longest prompt from the start
    cell = lambda name, weights, depth: (f"{peak / 1e6:,.0f}" if (name not in LLAMA or depth == sizes["read"]) and
                                         (peak := memory(log, weights, name, depth)) else "")
    sources = {name: weights for name, weights in sources.items() if name != HIGH}
    return results.table(["peak memory at depth, MB", *sources],
                         [[results.size(d)] + [cell(name, weights, d) for name, weights in sources.items()] for d in depths])


def plot(args, log, sources, weights, sizes):
    depths = sizes["decode"]
    data = {name: values(log, source, name, "decode") for name, source in sources.items() if name != HIGH}
    fits = fitted_decode(data, depths)
    series = []
    for name, found in data.items():
        spreads = {depth: results.Spread(v) for depth, v in found.items()}
        series.append({"label": name, "points": [(d, s.median, s.low, s.high) for d, s in spreads.items()], "fitted": list(fits[name].items())})
    rate = rates(log).median * 1e6  # bytes per ms
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
    parser.add_argument("--budget", type=float, default=25, help="minutes for each weight type after which no prompt is begun that would end later")
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
