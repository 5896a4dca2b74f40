"""llama.cpp on one GGUF file, a measurement for each line of standard input (results.answer_turns has the words):

    llama_cpp_turns.py MODEL --threads N --flash 0|1 --repack 0|1 --room TOKENS [--steps N]

Prompts are read in batches of 512. To decode at a depth it reads on from where it is, untimed, and takes the steps back
after timing them. Weights are read into memory, not mapped.
"""
import argparse
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
    peer = Peer(args)
    peer.read(0, BATCH)  # warms up
    results.answer_turns({"decode": lambda depth: {"ms": peer.decode(depth, args.steps)},
                          "prefill": lambda tokens: {"seconds": peer.prefill(tokens)}})


class Peer:
    def __init__(self, args):
        self.model = llama.Model(args.model, copied=True, repack=bool(args.repack))
        self.ctx = self.model.context(args.room + args.steps + WARM_UP + 8, BATCH, args.threads, bool(args.flash))
        if not self.ctx:
            raise SystemExit(f"llama.cpp makes no context, flash {args.flash}")
        self.memory = llama_cpp.llama_get_memory(self.ctx)
        self.prompt = [(i * 7919 + 13) % 32000 for i in range(args.room)]
        self.tokens = 0  # in the cache

    def decode(self, depth, steps):
        if self.tokens > depth:
            self.clear()
        self.read(self.tokens, depth)
        times = [self.forward([(step * 31 + 7) % 32000]) for step in range(steps + WARM_UP)][WARM_UP:]
        if not llama_cpp.llama_memory_seq_rm(self.memory, 0, depth, -1):
            raise SystemExit("llama.cpp takes no tokens back")
        return [t * 1e3 for t in times]

    def prefill(self, tokens):
        self.clear()
        return self.read(0, tokens)

    def clear(self):
        llama_cpp.llama_memory_clear(self.memory, True)
        self.tokens = 0

    def read(self, begin, end):
        seconds = sum(self.forward(self.prompt[first:min(first + BATCH, end)]) for first in range(begin, end, BATCH))
        self.tokens = end
        return seconds

    def forward(self, ids):
        array = (llama_cpp.llama_token * len(ids))(*ids)  # the batch only points to it
        start = time.perf_counter()
        status = llama_cpp.llama_decode(self.ctx, llama_cpp.llama_batch_get_one(array, len(ids)))
        if status:
            raise SystemExit(f"llama_decode returned {status}")
        llama_cpp.llama_get_logits(self.ctx)[0]  # waits for the result
        return time.perf_counter() - start


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--flash", type=int, default=0)
    parser.add_argument("--repack", type=int, default=0, help="whether weights are laid out anew for this processor")
    parser.add_argument("--room", type=int, required=True, help="the most tokens that a turn will ask for")
    parser.add_argument("--steps", type=int, default=16)
    return parser.parse_args()


main()
