"""Keeps a session in a file: what was read need not be read again, not even by another process.

    save_load.py MODEL TEXT FILE

Reads the text, saves the session, goes on; loads it, goes on from there: the same words.
"""

import os
import sys

import waveinfer


def go_on(session: waveinfer.Session) -> list[int]:
    """Prints what comes next, and returns its tokens."""
    events = [session.decode() for _ in range(32)]
    print("".join(event.text for event in events))
    return [event.token for event in events]


def main(path: str, text: str, file: str) -> None:
    with waveinfer.Runtime() as runtime, runtime.open(path) as model:
        with model.session() as session:
            session.append_text(os.fsencode(text), add_bos=True)  # its bytes, as the shell gave them
            session.save(file)
            before = go_on(session)
        with model.load(file) as loaded:
            print(f"loaded: {loaded.stats().tokens} tokens")
            after = go_on(loaded)
        print(f"the same tokens: {'yes' if before == after else 'no'}")


USAGE = """usage: save_load.py MODEL TEXT FILE
Example: save_load.py m.gguf 'Once upon a time' story.session"""

if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(USAGE)
        sys.exit()
    if len(sys.argv) != 4:
        sys.exit(USAGE)
    try:
        main(*sys.argv[1:])
    except waveinfer.Error as error:
        sys.exit(f"save_load: {error}")
