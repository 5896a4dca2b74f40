"""The same mix of requests to waveinfer's engine and to llama.cpp's server; writes docs/results/serve.{jsonl,md}.

    serve.py --bin build/bin --llama-server FILE [--shape small] [--weights q8_0] [--requests 32] [--rate 1] [--long 4096]

wi_bench makes the mix from its seed and writes it down; here it is sent on, each request at its time, as token ids over HTTP,
the answer streamed. The document that questions go on from has been read by both before the clock starts. Times are taken
where a host would take them: at the engine's notification, and at the arrival of a line of the stream.
"""
import argparse
import http.client
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(HERE.parent))
import results

KINDS = ("chat", "document", "question", "all")
COLUMNS = {"written_per_second": "tokens written/s", "first_token_ms_p50": "first token, ms, p50", "first_token_ms_p99": "p99",
           "between_tokens_ms_p50": "between tokens, ms, p50", "between_tokens_ms_p99": "p99"}


def main():
    args = arguments()
    settings = {name: getattr(args, name) for name in ("shape", "weights", "requests", "rate", "long", "seed", "slots", "threads")}
    log = results.Log(args.out / "serve.jsonl", results.command_line("tests/bench/peers/serve.sh"), settings, args.fresh)
    path = model_file(args)
    for policy in ("full", "wave"):
        if not log.has((f"waveinfer {policy}", "all")):
            for line in ours(args, path, policy):
                log.add((f"waveinfer {policy}", line["kind"]), line)
                print(line, flush=True)
    if not log.has(("llama.cpp server", "all")):
        if not mix_file(args).exists():
            ours(args, path, "wave")
        for line in theirs(args, path):
            log.add(("llama.cpp server", line["kind"]), line)
            print(line, flush=True)
    report(args, log)


def ours(args, path, policy):
    command = [args.bin / "wi_bench", "--serve", "--model", path, "--load", "copied", "--policy", policy, "--no-check", "--threads", args.threads,
               "--requests", args.requests, "--rate", args.rate, "--long", args.long, "--seed", args.seed, "--mix", mix_file(args)]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"wi_bench returned {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def theirs(args, path):
    library, *requests = map(json.loads, mix_file(args).read_text().splitlines())
    with Server(args, path) as server:
        server.complete(library["library"], 1)
        answers, threads, start = [None] * len(requests), [], time.monotonic()

        def ask(number, request):
            before = library["library"] if request["kind"] == "question" else []
            submitted = time.monotonic()
            answers[number] = (submitted, *server.complete(before + request["tokens"], request["max_tokens"]))
        for number, request in enumerate(requests):
            time.sleep(max(0, start + request["arrives_s"] - time.monotonic()))
            threads.append(threading.Thread(target=ask, args=(number, request)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - start
    if None in answers:
        raise SystemExit(f"{answers.count(None)} of {len(answers)} requests failed")
    return [line_of([(r, a) for r, a in zip(requests, answers) if kind in ("all", r["kind"])], kind, seconds) for kind in KINDS]


def line_of(asked, kind, seconds):
    first = [(times[0] - submitted) * 1e3 for _, (submitted, times, _) in asked]
    gaps = [(b - a) * 1e3 for _, (_, times, _) in asked for a, b in zip(times, times[1:])]
    written = sum(count for _, (_, _, count) in asked)
    percentile = lambda values, share: sorted(values)[math.ceil(share * len(values)) - 1] if values else 0
    return {"bench": "serve", "kind": kind, "requests": len(asked), "seconds": round(seconds, 2),
            "tokens_read": sum(len(request["tokens"]) for request, _ in asked), "tokens_written": written,
            "written_per_second": round(written / seconds, 1),
            "first_token_ms_p50": round(percentile(first, 0.5), 1), "first_token_ms_p99": round(percentile(first, 0.99), 1),
            "between_tokens_ms_p50": round(percentile(gaps, 0.5), 2), "between_tokens_ms_p99": round(percentile(gaps, 0.99), 2)}


class Server:
    """llama.cpp's server on a free port, with a cache that holds all of its slots' longest requests"""

    def __init__(self, args, path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.errors = (args.folder / "llama-server.log").open("w")
        command = [args.llama_server, "--model", path, "--host", "127.0.0.1", "--port", self.port, "--parallel", args.slots, "--ctx-size",
                   args.slots * (args.long + 256), "--threads", args.threads, "--threads-batch", args.threads, "--load-mode", "none", "--no-webui"]
        self.process = subprocess.Popen([str(word) for word in command], stdout=self.errors, stderr=self.errors)

    def __enter__(self):
        for _ in range(1200):
            if self.process.poll() is not None:
                raise SystemExit(f"llama-server returned {self.process.returncode}; see {self.errors.name}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit("llama-server does not answer")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.errors.close()

    def complete(self, tokens, count):
        """(arrival of each part of the answer, tokens in all)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", "/completion", json.dumps({"prompt": tokens, "n_predict": count, "temperature": 0, "ignore_eos": True,
                                                              "stream": True, "cache_prompt": True}), {"Content-Type": "application/json"})
        response, times, last = connection.getresponse(), [], {}
        if response.status != 200:
            raise SystemExit(f"llama-server: {response.status} {response.read()[:500]}")
        for line in response:
            if line.startswith(b"data: "):
                last = json.loads(line[6:])
                if not last.get("stop"):
                    times.append(time.monotonic())
        return times or [time.monotonic()], last["tokens_predicted"]


def report(args, log):
    names = list(dict.fromkeys(key[0] for key in log.entries))
    tables = []
    for kind in KINDS:
        rows = [[name, *(results.short(log.entries[name, kind][column]) for column in COLUMNS)] for name in names]
        entry = log.entries[names[0], kind]
        tables.append(f"## {kind}: {entry['requests']} requests, {entry['tokens_read']:,} tokens to read\n\n" +
                      results.table(["", *COLUMNS.values()], rows))
    text = (f"`{args.shape}` {args.weights}, {args.threads} threads. {args.requests} requests, {args.rate} a second on average (Poisson): chat turns "
            f"(32 to 512 tokens), documents ({args.long // 4} to {args.long} tokens), and questions to a document of {args.long} tokens that has been read "
            f"before. llama.cpp's server has {args.slots} slots, prompts cached; waveinfer as it comes, one fork a question. Each gets the whole "
            "mix in its turn, at the same times. llama.cpp's times are those of its stream's lines, which may hold more than one token.")
    results.write_markdown(args.out / "serve.md", "Many requests at once, beside llama.cpp's server", log, [text, *tables])
    print((args.out / "serve.md").read_text())


def mix_file(args):
    return args.folder / f"mix-{args.requests}-{args.rate}-{args.long}-{args.seed}.jsonl"


def model_file(args):
    path = args.folder / f"{args.shape}-{args.weights}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        subprocess.run([sys.executable, HERE / "make_shape.py", args.shape, args.weights, part], check=True)
        part.rename(path)
    return path


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--llama-server", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for models and the mix")
    parser.add_argument("--out", type=pathlib.Path, help="default: docs/results; with --quick: --folder")
    parser.add_argument("--shape")
    parser.add_argument("--weights", default="q8_0")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rate", type=int, default=1)
    parser.add_argument("--long", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="tiny model, few requests: whether it works")
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    args.shape = args.shape or ("tiny" if args.quick else "small")
    args.requests = args.requests or (8 if args.quick else 32)
    args.long = args.long or (1024 if args.quick else 4096)
    args.folder.mkdir(parents=True, exist_ok=True)
    args.out = args.out or (args.folder if args.quick else ROOT / "docs" / "results")
    return args


main()
