"""Conversations rendered by this library and by transformers' Jinja, for every template of tests/fixtures/make_chat.py.

    check_chat.py --library build/lib/libwaveinfer.so [--seed N] [--random N]

Conversations are the fixtures' and --random new ones: with and without a system message, up to 9 turns, contents with
white space at their edges, markup of other families, <think> blocks. Texts must be equal; where the template raises, this
library must refuse. It may also refuse a system message that is not first where its family has no place for one. Roles
in an order that no template was made for (two users in a row) are in the fixtures and not among the random ones.
"""
import argparse
import os
import pathlib
import random
import sys
import tempfile
import time

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(TESTS / "support"), str(TESTS / "fixtures")]
import make_chat as fixtures
import make_models as tiny
import waveinfer

EDGES = ["", "", "", " ", "\n", "\n\n", "\t", "  \n ", "\u3000", "\u00a0", "\r\n", "\x1c", "\u200b"]
MIDDLES = ["Hello", "two words", "line one\nline two", "日本語", "😀👩‍👩‍👧‍👦", "[INST] x [/INST]", "<|im_end|>", "<<SYS>>", "{{ x }} {% y %} {# z #}",
           "'single' \"double\" \\n \\\\", "a</think>b", "<think>\nwhy\n</think>\n\nbecause", "User: Assistant:", "", "é" * 30, "<s></s>", "&lt;"]


def random_conversation(rng):
    content = lambda: rng.choice(EDGES) + rng.choice(MIDDLES) + rng.choice(EDGES)
    messages = [{"role": "system", "content": content()}] if rng.random() < 0.5 else []
    for turn in range(rng.randint(1, 8)):
        messages.append({"role": ("user", "assistant")[turn % 2], "content": content()})
    return messages


def write_model(folder, template, bos, eos):
    """A tiny model with this template and these two tokens"""
    config = dict(tiny.LLAMA, vocab_size=tiny.VOCAB, num_hidden_layers=1)
    metadata, texts = tiny.TEMPLATE, list(tiny.TOKEN_TEXTS)
    try:
        tiny.TEMPLATE, tiny.TOKEN_TEXTS[0], tiny.TOKEN_TEXTS[1] = template, bos or "<|none|>", eos
        weights = tiny.random_weights(transformers.AutoConfig.for_model(**config), None)
        tiny.write_gguf("chat", config, tiny.gguf_tensors(config, weights, tiny.gguf.GGMLQuantizationType.F32), str(folder))
    finally:
        tiny.TEMPLATE, tiny.TOKEN_TEXTS[:] = metadata, texts
    return folder / "chat.gguf"


def render(template, messages, prompt, bos, eos):
    """None where the template raises"""
    try:
        return render_jinja_template([messages], chat_template=template, add_generation_prompt=prompt, bos_token=bos, eos_token=eos)[0][0]
    except jinja2.exceptions.TemplateError:
        return None


def without_today(text):
    """Llama 3.2's template writes today's date where the host has a clock; this library writes the template's own."""
    return text and text.replace(time.strftime("Today Date: %d %b %Y"), "Today Date: 26 Jul 2024")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--random", type=int, default=200)
    args = parser.parse_args()
    print(f"chat: seed {args.seed}, transformers {transformers.__version__}, jinja2 {jinja2.__version__}")
    rng, failed, equal, refused = random.Random(args.seed), 0, 0, 0
    conversations = fixtures.all_conversations() + [random_conversation(rng) for _ in range(args.random)]
    library = waveinfer.Library(args.library)
    with tempfile.TemporaryDirectory() as folder:
        for name, (family, template, bos, eos) in fixtures.TEMPLATES.items():
            model = library.open(write_model(pathlib.Path(folder), template, bos, eos))
            before = failed
            for messages in conversations:
                late = any(message["role"] == "system" for message in messages[1:])
                for prompt in (False, True):
                    wanted = without_today(render(template, messages, prompt, bos, eos))
                    try:
                        got = model.chat(messages, prompt)
                    except waveinfer.Failure as failure:
                        got, reason = None, failure
                    if got == wanted:
                        equal += got is not None
                        refused += got is None
                    elif got is None and late and family in ("llama-2", "mistral", "deepseek"):
                        refused += 1
                    else:
                        failed += 1
                        if failed - before <= 3:
                            print(f"  FAILED {name}, {messages}, prompt {prompt}:\n  {got!r}{'' if got is not None else f' ({reason})'}"
                                  f"\n  wanted\n  {wanted!r}")
            print(f"{name} ({family}): {'equal' if failed == before else f'{failed - before} differ'}", flush=True)
    print(f"chat: {equal} texts equal, {refused} refused, {failed} failures")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
