"""What goes wrong, and how it looks: an exception whose message names what and where, and everything as it was.

errors.py MODEL
"""

import sys
from collections.abc import Callable

import waveinfer


def show(what: str, call: Callable[[], object]) -> None:
    print(what)
    try:
        call()
        print("  OK")
    except waveinfer.Error as error:
        print(f"  {waveinfer.status_name(error.status)}: {error}")


def main(path: str) -> None:
    # A million bytes for keys and values of all sessions.
    runtime = waveinfer.Runtime(kv_budget_bytes=1_000_000)
    with runtime, runtime.open(path) as model, model.session() as session:
        show("a file that is not there", lambda: runtime.open("missing.gguf"))
        show("a file that is no model", lambda: runtime.open_memory(bytes(64)))
        show("a token that is none", lambda: session.prefill([1, 2, 1 << 30]))
        show("an answer to nothing", session.decode)

        tokens = [100 + i % 1000 for i in range(20000)]
        show("a prompt beyond the budget", lambda: session.prefill(tokens))

        cancel = waveinfer.Cancel()
        cancel.trigger()
        show("a call that was cancelled", lambda: session.prefill(tokens[:200], cancel=cancel))
        show("and the session is as it was", lambda: session.prefill(tokens[:200]))


USAGE = """usage: errors.py MODEL
Example: errors.py m.gguf"""

if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(USAGE)
        sys.exit()
    if len(sys.argv) != 2:
        sys.exit(USAGE)
    try:
        main(sys.argv[1])
    except waveinfer.Error as error:
        print(f"errors\n  {waveinfer.status_name(error.status)}: {error}")
        sys.exit(1)
