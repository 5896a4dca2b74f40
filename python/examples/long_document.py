"""Reads a long document once, then answers several questions about it at the same time, each from a fork.

    long_document.py MODEL DOCUMENT QUESTION...

Ctrl-C ends reading and answering. Progress and statistics go to standard error.
"""

import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import waveinfer


def show_progress(done: int, total: int) -> None:
    print(f"\rreading: {100 * done / total:3.0f} %", end="", file=sys.stderr, flush=True)


def same(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """How many tokens two prompts begin with in common."""
    shorter = min(a.size, b.size)
    different = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(different[0]) if different.size else shorter


def ask(document: waveinfer.Session, question: NDArray[np.int32]) -> waveinfer.Task:
    """Has a fork of the document read the rest of a question and answer it."""
    with document.fork() as fork:  # the task keeps it
        return fork.submit(question, max_tokens=128)


def say(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.flush()


def main(path: str, document_path: str, *questions: str) -> None:
    with waveinfer.Runtime() as runtime, runtime.open(path) as model, model.session() as document:
        text = Path(document_path).read_bytes() + b"\n\n"

        def user_turn(content: bytes) -> NDArray[np.int32]:
            return model.chat_tokens([{"role": "user", "content": content}], add_generation_prompt=True)

        # What all these conversations begin with is the document: it is read once.
        opening = user_turn(text)
        asked = [user_turn(text + os.fsencode(question)) for question in questions]
        shared = min(same(opening, turn) for turn in asked)
        document.prefill(opening[:shared], progress=show_progress)
        print(file=sys.stderr)

        tasks = [ask(document, turn[shared:]) for turn in asked]
        for question, task in zip(questions, tasks, strict=True):
            say(os.fsencode(question) + b"\n  ")  # a question as the shell gave it
            for event in task:
                say(event.text.encode())
            say(b"\n")
            task.close()

        stats = document.stats()
        print(
            f"{stats.tokens} tokens read in {stats.prefill_ns / 1e9:.1f} s, {stats.segments} segments, "
            f"{stats.kv_bytes / 1e6:.1f} MB of KV cache, {stats.index_bytes / 1e6:.1f} MB of it index",
            file=sys.stderr,
        )


USAGE = """usage: long_document.py MODEL DOCUMENT QUESTION...
Example: long_document.py m.gguf book.txt 'Who wrote the letter?'"""

if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(USAGE)
        sys.exit()
    if len(sys.argv) < 4:
        sys.exit(USAGE)
    try:
        main(*sys.argv[1:])
    except (waveinfer.Error, OSError, KeyboardInterrupt) as error:
        sys.exit(f"\nlong_document: {str(error) or 'interrupted'}")
