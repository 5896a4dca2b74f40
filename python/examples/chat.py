"""A conversation with a model: each line of standard input is a turn, the answer is streamed.

    chat.py MODEL

Before each answer the whole conversation is rendered in the model's own chat template; what the session has of
it already is kept, the rest is read.
"""

import sys

import numpy as np

import waveinfer


def read_conversation(
    model: waveinfer.Model, session: waveinfer.Session, turns: list[waveinfer.Message]
) -> None:
    """Brings the session to where the assistant's next answer begins."""
    wanted = model.chat_tokens(turns, add_generation_prompt=True)
    had = session.tokens()
    shorter = min(wanted.size, had.size)
    different = np.flatnonzero(wanted[:shorter] != had[:shorter])
    same = int(different[0]) if different.size else shorter
    session.truncate(same)
    session.prefill(wanted[same:])


def answer(session: waveinfer.Session) -> str:
    text = ""
    for event in session.stream(max_tokens=256):
        print(event.text, end="", flush=True)
        text += event.text
    print()
    return text


def main(path: str) -> None:
    turns: list[waveinfer.Message] = []
    with waveinfer.Runtime() as runtime, runtime.open(path) as model, model.session() as session:
        for line in sys.stdin.buffer:
            turns.append({"role": "user", "content": line.removesuffix(b"\n")})
            read_conversation(model, session, turns)
            turns.append({"role": "assistant", "content": answer(session)})


USAGE = """usage: chat.py MODEL
Example: chat.py m.gguf"""

if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(USAGE)
        sys.exit()
    if len(sys.argv) != 2:
        sys.exit(USAGE)
    try:
        main(sys.argv[1])
    except waveinfer.Error as error:
        sys.exit(f"chat: {error}")
