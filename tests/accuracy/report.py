"""Turns the lines of wi_accuracy and wi_trace into accuracy.md, three plots and compressed lines."""
import argparse
import collections
import gzip
import json
import os
import pathlib
import platform

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import matplotlib.ticker  # noqa: E402

DEFAULT_BUDGET = 0.018  # the published one


def main():
    options = parse_options()
    out = pathlib.Path(options.out)
    answers = [json.loads(line) for line in open(options.answers)]
    trace = [json.loads(line) for line in open(options.trace)]
    reference = next(a["policy"] for a in answers if a["budget"] == 1 and a["first_difference"] == -1)
    plot_accuracy(answers, reference, out / "accuracy-over-budget.png")
    plot_recall([t for t in trace if "recall" in t], out / "recall-over-budget.png")
    plot_depths(answers, reference, out / "depth-by-length.png")
    (out / "accuracy.md").write_text("\n".join(report(answers, trace, reference, options)) + "\n")
    for name in ("answers", "trace"):
        with gzip.GzipFile(out / f"accuracy-{name}.jsonl.gz", "wb", mtime=0) as file:
            file.write(pathlib.Path(getattr(options, name)).read_bytes())
    print((out / "accuracy.md").read_text())


def report(answers, trace, reference, options):
    tasks = list(dict.fromkeys(a["task"] for a in answers))
    lengths = sorted({a["length"] for a in answers})
    contestants = contestants_of(answers, reference)
    seeds = sorted({a["seed"] for a in answers})
    yield "# Accuracy of the policies"
    yield ""
    yield f"`{options.command}` on {machine()}, {options.seconds} s in all; model {options.model}; seeds {seeds[0]} to {seeds[-1]}."
    yield "One question is " + ", ".join(
        f"{100 / sum(a['length'] == n and a['policy'] == reference for a in answers):.1f} points at {name_of(n)}" for n in lengths) + "."
    yield "Written by that command. Tasks are made by `tests/accuracy/tasks.cpp`; each line of `accuracy-answers.jsonl.gz` is a question"
    yield "under one policy and budget. A budget is the share of the indexed tokens whose keys and values are read exactly."
    yield ""
    if options.note:
        yield options.note
        yield ""
    yield f"## Against `{reference}`, averaged over tasks"
    yield ""
    yield "Points of accuracy above (+) or below (−) the reference, over the tasks that the reference can do at all: first the mean"
    yield "over tasks (some have few questions, see below), then over all questions alike. In brackets: answers that went wrong"
    yield f"here, and after the slash those that came right only here. n is what `{reference}` got right of all that was asked."
    yield ""
    able = {t for t in tasks if any(a["right"] for a in answers if a["task"] == t and a["policy"] == reference)}
    counted = [a for a in answers if a["task"] in able]
    yield "| policy | budget | " + " | ".join(f"{name_of(n)} (n = {right_of(counted, reference, n)})" for n in lengths) + " |"
    yield "|---|---|" + "---|" * len(lengths)
    for policy, budget in contestants:
        cells = [difference(counted, policy, budget, reference, length) for length in lengths]
        yield f"| `{policy}` | {percent(budget)} | " + " | ".join(cells) + " |"
    yield ""
    yield "![accuracy over budget](accuracy-over-budget.png)"
    yield ""
    yield f"## Task by task, at {percent(DEFAULT_BUDGET)}"
    yield ""
    yield f"Right answers of questions asked; `{reference}` first. What it cannot do at all says nothing about the others."
    yield ""
    shown = [(reference, 1)] + [c for c in contestants if c[1] == DEFAULT_BUDGET]
    yield "| task | tokens | " + " | ".join(f"`{policy}`" for policy, _ in shown) + " |"
    yield "|---|---|" + "---|" * len(shown)
    grouped = group(answers, "task", "length", "policy", "budget")
    for task in tasks:
        for length in lengths:
            rows = [grouped.get((task, length, policy, budget), []) for policy, budget in shown]
            if rows[0]:
                cells = [f"{sum(a['right'] for a in row)} of {len(row)}" for row in rows]
                yield f"| {task} | {name_of(length)} | " + " | ".join(cells) + " |"
    yield ""
    yield "![depth by length](depth-by-length.png)"
    yield ""
    yield "## Read per token"
    yield ""
    yield "Keys, values and index together, bytes per decode step as a share of what the reference reads."
    yield ""
    yield "| policy | budget | " + " | ".join(name_of(n) for n in lengths) + " |"
    yield "|---|---|" + "---|" * len(lengths)
    read = {key: mean([a["kv_bytes_read_per_step"] for a in rows])
            for key, rows in group(answers, "policy", "budget", "length").items()}
    for policy, budget in contestants:
        cells = [f"{100 * read[policy, budget, n] / read[reference, 1, n]:.1f} %" for n in lengths]
        yield f"| `{policy}` | {percent(budget)} | " + " | ".join(cells) + " |"
    yield ""
    yield "## Where attention is lost"
    yield ""
    yield "`wi_trace`: the policies attend to the queries of an answer under full attention. Means over questions, steps, layers"
    yield "and heads of the attention mass that is covered exactly, and of what is lost to the budget (even the best single"
    yield "tokens), to clustering (whole partitions instead, chosen knowing the weights), and to ranking (the policy's own choice);"
    yield "the output's relative error with and without the estimate; the KL of the next token's distribution. The head with"
    yield "the least coverage is the last column."
    yield ""
    yield "| document | policy | budget | recall | covered | budget | clustering | ranking | error | no estimate | KL | worst head |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    divergences = group([t for t in trace if "kl" in t], "document", "length", "policy", "budget")
    stages = group([t for t in trace if "recall" in t], "document", "length", "policy", "budget")
    for (document, length, policy, budget), rows in stages.items():
        of = {field: mean([r[field] for r in rows]) for field in
              ("recall", "coverage", "lost_budget", "lost_clustering", "lost_ranking", "output_error",
               "output_error_without_estimate")}
        heads = {place: mean([r["coverage"] for r in some]) for place, some in group(rows, "layer", "head").items()}
        worst = min(heads, key=heads.get)
        kl = mean([d["kl"] for d in divergences[document, length, policy, budget]])
        yield (f"| {document}, {name_of(length)} | `{policy}` | {percent(budget)} | {of['recall']:.3f} | {of['coverage']:.4f} | "
               f"{of['lost_budget']:.4f} | {of['lost_clustering']:.4f} | {of['lost_ranking']:.4f} | {of['output_error']:.4f} | "
               f"{of['output_error_without_estimate']:.4f} | {kl:.4f} | layer {worst[0]}, head {worst[1]}: {heads[worst]:.3f} |")
    yield ""
    yield "![recall over budget](recall-over-budget.png)"


def plot_accuracy(answers, reference, path):
    lengths = sorted({a["length"] for a in answers})
    grouped = group(answers, "policy", "budget", "length")
    figure, axes = plt.subplots(1, len(lengths), figsize=(4 * len(lengths), 3.6), sharey=True, squeeze=False)
    for axis, length in zip(axes[0], lengths):
        full = 100 * mean([a["right"] for a in grouped[reference, 1, length]])
        axis.axhline(full, color="black", linewidth=1, label=reference)
        for policy in dict.fromkeys(p for p, _ in contestants_of(answers, reference)):
            points = sorted((b, 100 * mean([a["right"] for a in rows]))
                            for (p, b, n), rows in grouped.items() if (p, n) == (policy, length))
            style = ("-", "--", ":", "-.")[len(axis.lines) % 4]  # lines may lie on each other
            axis.plot([100 * b for b, _ in points], [y for _, y in points], style, marker="o", label=policy)
        budget_axis(axis)
        axis.set_title(name_of(length) + " tokens")
    axes[0][0].set_ylabel("right answers, %")
    axes[0][0].legend(fontsize=7)
    save(figure, path)


def plot_recall(stages, path):
    grouped = group(stages, "document", "length", "policy", "budget")
    documents = list(dict.fromkeys((d, n) for d, n, _, _ in grouped))
    figure, axes = plt.subplots(1, len(documents), figsize=(4.5 * len(documents), 3.6), sharey=True, squeeze=False)
    for axis, (document, length) in zip(axes[0], documents):
        for policy in dict.fromkeys(p for d, n, p, _ in grouped if (d, n) == (document, length)):
            points = sorted((b, mean([r["recall"] for r in rows])) for (d, n, p, b), rows in grouped.items()
                            if (d, n, p) == (document, length, policy))
            style = ("-", "--", ":", "-.")[len(axis.lines) % 4]  # lines may lie on each other
            axis.plot([100 * b for b, _ in points], [y for _, y in points], style, marker="o", label=policy)
        budget_axis(axis)
        axis.set_title(f"{document}, {name_of(length)}")
    axes[0][0].set_ylabel(f"recall of the top {stages[0]['top']} keys" if stages else "recall")
    axes[0][0].legend(fontsize=7)
    save(figure, path)


def plot_depths(answers, reference, path):
    lengths = sorted({a["length"] for a in answers})
    policies = [(reference, 1)] + [c for c in contestants_of(answers, reference) if c[1] == DEFAULT_BUDGET]
    figure, axes = plt.subplots(1, len(policies), figsize=(2.6 * len(policies), 3.4), sharey=True, squeeze=False)
    for axis, (policy, budget) in zip(axes[0], policies):
        cells = collections.defaultdict(list)
        for a in answers:
            if (a["policy"], a["budget"]) == (policy, budget):
                cells[min(int(a["depth"] * 10), 9), lengths.index(a["length"])].append(a["right"])
        grid = [[100 * mean(cells[d, n]) if cells[d, n] else float("nan") for n in range(len(lengths))] for d in range(10)]
        image = axis.imshow(grid, aspect="auto", vmin=0, vmax=100, cmap="RdYlGn")
        axis.set_xticks(range(len(lengths)), [name_of(n) for n in lengths])
        axis.set_yticks(range(10), [f"{d * 10} %" for d in range(10)])
        axis.set_title(policy if budget == 1 else f"{policy}\n{percent(budget)}", fontsize=8)
    axes[0][0].set_ylabel("depth of the fact")
    figure.colorbar(image, ax=list(axes[0]), label="right answers, %")
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})


def budget_axis(axis):
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(matplotlib.ticker.FixedLocator([0.9, 1.8, 3.6, 7.2]))
    axis.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axis.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axis.set_xlabel("budget, % of indexed tokens")


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def contestants_of(answers, reference):
    return [c for c in dict.fromkeys((a["policy"], a["budget"]) for a in answers) if c != (reference, 1)]


def difference(answers, policy, budget, reference, length):
    ours = [a for a in answers if (a["policy"], a["budget"], a["length"]) == (policy, budget, length)]
    points = mean([100 * (mean([a["right"] for a in rows]) - mean([a["reference_right"] for a in rows]))
                   for rows in group(ours, "task").values()])
    pooled = 100 * (mean([a["right"] for a in ours]) - mean([a["reference_right"] for a in ours]))
    lost = sum(a["reference_right"] and not a["right"] for a in ours)
    won = sum(a["right"] and not a["reference_right"] for a in ours)
    return f"{points:+.1f}, {pooled:+.1f} ({lost}/{won})".replace("-", "−")


def right_of(answers, reference, length):
    rows = [a for a in answers if (a["policy"], a["length"]) == (reference, length)]
    return f"{sum(a['right'] for a in rows)} of {len(rows)}"


def group(rows, *fields):
    groups = collections.defaultdict(list)
    for row in rows:
        key = tuple(row[field] for field in fields)
        groups[key if len(fields) > 1 else key[0]].append(row)
    return groups


def mean(values):
    return sum(values) / len(values)


def name_of(length):
    return f"{length // 1024}K" if length % 1024 == 0 else str(length)


def percent(share):
    return f"{share * 100:g} %"


def machine():
    with open("/proc/cpuinfo") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())
    return f"{len(os.sched_getaffinity(0))} cores of {name}"


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("answers", "trace", "model", "command", "seconds", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--note", help="a sentence more for the report's head, such as what was asked later")
    return parser.parse_args()


main()
