"""What measurements in docs/results have in common: the machine, JSON lines that a broken-off run goes on from,
Markdown tables, and log-log plots.

    log = results.Log("docs/results/peers.jsonl", command, settings)   # goes on where an earlier run of it stopped
    if not log.has(key): log.add(key, {"ms": 1.5})
    results.write_markdown("docs/results/peers.md", title, command, sections)
"""
import datetime
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile


def machine():
    """What a figure cannot be read without."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), platform.processor())
    flags = set(next((line.split(":")[1].split() for line in text.splitlines() if line.startswith("flags")), []))
    simd = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return {"cpu": name, "simd": simd, "threads": len(os.sched_getaffinity(0)),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1), "gpu": gpu(),
            "system": platform.release(), "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "load": round(os.getloadavg()[0], 2), "commit": commit()}


def machine_line(m):
    gpus = f", {m['gpu']}" if m["gpu"] else ""
    return (f"{m['cpu']} ({', '.join(m['simd'])}), {m['threads']} threads, {m['memory_gb']} GB{gpus}, Linux {m['system']}; {m['date']}; "
            f"commit {m['commit']}; load {m['load']} at the start")


def gpu():
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return ", ".join(out.split("\n")).strip(", ")


def commit():
    here = pathlib.Path(__file__).parent
    try:
        out = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return out.stdout.strip()


def command_line(script):
    """The command as its reader typed it: run.sh hands on its own arguments in $RUN_ARGUMENTS."""
    return " ".join([script, os.environ.get("RUN_ARGUMENTS", shlex.join(sys.argv[1:]))]).strip()


def peak_rss_bytes():
    """Of this process. Not getrusage's, which starts from the parent's."""
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def answer_turns(measures):
    """A contestant's side of taking turns, so that all see the machine in the same minute: says that it is ready, then
    answers each line of standard input, `decode DEPTH` or `prefill TOKENS`, with one JSON object.

    measures: word -> function of a number of tokens that returns the measured values by name."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        what, tokens = line.split()
        values = measures[what](int(tokens))
        print(json.dumps({"what": what, "tokens": int(tokens), **values, "peak_rss_bytes": peak_rss_bytes()}), flush=True)


class Contestant:
    """The other side: a process that answers turns."""

    def __init__(self, command):
        self.command = [str(word) for word in command]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.answer()  # ready

    def turn(self, what, tokens):
        self.process.stdin.write(f"{what} {tokens}\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        raise SystemExit(f"{' '.join(self.command)}\nreturned {self.process.returncode}:\n{self.errors.read()[-2000:]}")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Log:
    """One JSON object a line: what was run on what, then one measurement each, with the key it is found by. Where it was gone
    on with later, what was run on what stands before those measurements again: a leg of the run.

    fresh: start anew. A log with other settings (anything that changes what a measurement means) starts anew too."""

    def __init__(self, path, command, settings, fresh=False):
        self.path, self.entries, self.legs = pathlib.Path(path), {}, []
        self.coming = {"command": command, "machine": machine(), "settings": settings}
        lines = [] if fresh or not self.path.exists() else [json.loads(line) for line in self.path.read_text().splitlines() if line]
        if lines and lines[0].get("settings") == settings:
            for line in lines:
                if "key" in line:
                    self.entries[tuple(line.pop("key"))] = line
                    self.legs[-1]["measurements"] += 1
                else:
                    self.legs.append({**line, "measurements": 0})
            if self.entries:
                print(f"{self.path}: going on after {len(self.entries)} measurements (--fresh starts anew)", flush=True)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")

    def has(self, key):
        return tuple(key) in self.entries

    def add(self, key, entry):
        with self.path.open("a") as file:
            if self.coming:
                file.write(json.dumps(self.coming) + "\n")
                self.legs.append({**self.coming, "measurements": 0})
                self.coming = None
            file.write(json.dumps({"key": list(key), **entry}) + "\n")
        self.entries[tuple(key)] = entry
        self.legs[-1]["measurements"] += 1


class Spread:
    """Median of some values, with the least and the greatest."""

    def __init__(self, values):
        self.n, self.median, self.low, self.high = len(values), statistics.median(values), min(values), max(values)

    def __str__(self):
        return short(self.median) if self.n == 1 else f"{short(self.median)} ({short(self.low)} to {short(self.high)}, n = {self.n})"


def short(value):
    """Three figures that count, or all before the point"""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def size(value):
    """1024 -> 1K, 1048576 -> 1M; others as they are"""
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if value >= unit and value % unit == 0:
            return f"{value // unit}{name}"
    return str(value)


def table(header, rows):
    line = lambda cells: "| " + " | ".join(str(cell) for cell in cells) + " |"
    return "\n".join([line(header), line(["---"] + ["---:"] * (len(header) - 1)), *map(line, rows)])


def write_markdown(path, title, log, sections):
    """sections: Markdown texts"""
    first, *later = log.legs
    legs = [f"    {first['command']}", "On " + machine_line(first["machine"]) + "."]
    legs += [f"{leg['measurements']} of its {len(log.entries)} measurements are from `{leg['command']}`, on {machine_line(leg['machine'])}."
             for leg in later]
    text = "\n\n".join([f"# {title}", *legs, *sections]) + "\n"
    pathlib.Path(path).write_text(text)
    print(f"written: {path}", flush=True)


def slope(points):
    """Of log y over log x, by least squares; 1 is linear growth"""
    import numpy as np
    x, y = np.log([p[0] for p in points]), np.log([p[1] for p in points])
    return float(np.polyfit(x, y, 1)[0]) if len(points) > 1 else float("nan")


def plot(path, title, series, x_label="context, tokens", y_label="ms per token"):
    """Log-log. series: dicts of label, points [(x, y) or (x, y, low, high)], and anything of fitted (points drawn hollow and
    dashed, as they were not measured), style ("line" for limits without markers)."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(8, 5), dpi=130)
    for one in series:
        points, fitted = sorted(one["points"]), sorted(one.get("fitted", []))
        x, y = [p[0] for p in points], [p[1] for p in points]
        if one.get("style") == "line":
            axes.plot(x, y, color="black", linestyle=":", linewidth=1, label=one["label"])
            continue
        spread = [[p[1] - p[2] if len(p) > 2 else 0 for p in points], [p[3] - p[1] if len(p) > 2 else 0 for p in points]]
        bars = axes.errorbar(x, y, yerr=spread, marker="o", markersize=4, capsize=2, linewidth=1.5, label=one["label"])
        if fitted:
            tail = [(x[-1], y[-1])] if points else []
            axes.plot(*zip(*(tail + [p[:2] for p in fitted])), color=bars[0].get_color(), linestyle="--", linewidth=1, marker="o",
                      markerfacecolor="white", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({p[0] for one in series for p in [*one["points"], *one.get("fitted", [])]})
    axes.set_xticks(ticks, [size(int(tick)) for tick in ticks], fontsize=7)
    axes.minorticks_off()
    low, high = axes.get_ylim()
    ticks = [m * 10.0 ** e for e in range(-6, 9) for m in (1, 2, 5) if low <= m * 10.0 ** e <= high]
    axes.set_yticks(ticks, [short(tick) for tick in ticks])
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    print(f"written: {path}", flush=True)
