"""Folders with random tokenizer files, here and in transformers: the same ids, or refused by name.

    check_folders.py --library build/lib/libwaveinfer.so [--seed N] [--cases N]

Each has a tokenizer.json over one of the two small vocabularies of tests/fixtures/tokenizer_files.json with a random pipeline,
added tokens with random flags and perhaps a post-processor; a tokenizer_config.json with a class, names of tokens, their flags
again, and keys that mean nothing; a config.json with a model_type; and one random layer. Of hard texts and of random ones the
ids must be those of transformers' AutoTokenizer, special tokens parsed and not parsed, and BOS first where it has it. The ids
of a conversation whose messages spell no special token must be those of its text there.

Left out is where this library differs and says so: a Qwen2 folder that does not ask for the class keeps its file's pipeline;
with ignore_merges the text of a control token is still text.
"""
import json
import os
import pathlib
import sys
import unicodedata

import numpy as np
import transformers
from safetensors.numpy import save_file

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "fixtures")]
import make_tokenizer_files as files
import make_tokenizers as fixtures
import random_cases
from make_tokenizer_files import MARK, added, byte_level, metaspace, replace, sequence, split

CLASSES = [None, "LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast",
           "GPTNeoXTokenizerFast", "GemmaTokenizerFast", "CohereTokenizerFast", "CodeGenTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend",
           "PreTrainedTokenizer", "BloomTokenizerFast", "SomebodysTokenizer", "RobertaTokenizerFast"]
PATTERNS = [fixtures.QWEN2, fixtures.LLAMA3, r"\p{N}{1,3}", r"\s+"]
MODELS = json.loads((TESTS / "fixtures/tokenizer_files.json").read_text())["models"]
KNOWN_ENDS = (b"</s>", b"<|end|>", b"<|endoftext|>", b"<eos>")  # of the tokens that folders have: by name here, whatever their files say
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


# With words in its prose that folders may add to the vocabulary: they are no marks of the template's.
TEMPLATE = "the word a b \u00e9t\u00e9.{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}<|user|>"


def random_pipeline(rng, kind):
    forms = [None, None] + [{"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD")]
    if kind == "char":
        forms += [sequence("normalizers", files.PREPEND, replace(" ", MARK))] * 4 + [replace(" ", MARK)] * 3
        cuts = [None, split(" ", "MergedWithPrevious", kind="String"), {"type": "Metaspace", "replacement": MARK, "add_prefix_space": True}]
        cuts += [metaspace(scheme, cut) for scheme in ("first", "always", "never") for cut in (True, False)]
    else:
        forms += [{"type": "NFC"}] * 3
        steps = [[byte_level(use_regex=True)], [byte_level(use_regex=True, add_prefix_space=True)], [byte_level()], [split(fixtures.QWEN2), byte_level()],
                 [split(fixtures.LLAMA3), byte_level()], [{"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)],
                 [split(rng.choice(PATTERNS), rng.choice(["Isolated", "Removed", "MergedWithNext"]), rng.random() < 0.3), byte_level()],
                 [split(rng.choice(PATTERNS)), split(rng.choice(PATTERNS)), byte_level(use_regex=rng.random() < 0.5)]]
        cuts = [list_[0] if len(list_) == 1 else sequence("pretokenizers", *list_) for list_ in steps]
    return {"normalizer": rng.choice(forms), "pre_tokenizer": rng.choice(cuts)}


def with_random_flags(rng, text, id=None):
    flags = {flag: rng.random() < 0.25 for flag in ("lstrip", "rstrip", "single_word", "normalized")}
    return added(text, id, special=rng.random() < 0.6, **flags)


def random_folder(rng, models):
    """(tokenizer.json, the other files by name, the size of the vocabulary)"""
    kind = rng.choice(list(models))
    size, model_type = len(models[kind]["vocab"]), rng.choice(["llama", "llama", "llama", "mistral", "qwen2", "qwen3"])
    tokens = [with_random_flags(rng, text, id) if rng.random() < 0.3 else added(text, id) for id, text in enumerate(files.SPECIALS)]
    for text in rng.sample(["<|end|>", "<|user|>", "word", "a b", "<think>", " \n", "the", "\u00e9t\u00e9", "<0x41>"], rng.choice([0, 0, 2, 4])):
        tokens.append(with_random_flags(rng, text, models[kind]["vocab"].get(text, size)))
        size += text not in models[kind]["vocab"]
    changes = dict(files.FALLBACK) if kind == "char" else {}
    if kind == "char" and rng.random() < 0.15:
        changes["byte_fallback"] = False
    steps, class_name = random_pipeline(rng, kind), rng.choice(CLASSES)
    if model_type in ("qwen2", "qwen3") and kind == "char":
        model_type = "llama"
    if model_type in ("qwen2", "qwen3"):
        class_name = rng.choice([None, "Qwen2Tokenizer", "Qwen2TokenizerFast"])
        steps = {"pre_tokenizer": files.QWEN, "normalizer": rng.choice([None, {"type": "NFC"}])}
    tokenizer = files.file_of(models[kind], changes, steps | {"added_tokens": tokens, "post_processor": rng.choice([None, None, files.BOS_FIRST])})
    config = {"tokenizer_class": class_name} if class_name else {}
    for key, text in NAMES.items():
        if rng.random() < 0.85:
            config[key] = text if rng.random() < 0.7 else {"__type": "AddedToken"} | with_random_flags(rng, text)
    for key, values in (("add_bos_token", (True, False)), ("add_eos_token", (True, False)), ("legacy", (True, False, None)), ("model_max_length", (100,)),
                        ("clean_up_tokenization_spaces", (True, False)), ("sp_model_kwargs", ({},)), ("split_special_tokens", (False,))):
        if rng.random() < 0.15:
            config[key] = rng.choice(values)
    if class_name in ("LlamaTokenizer", "LlamaTokenizerFast") and rng.random() < 0.2:
        config["add_prefix_space"] = rng.choice([True, False, None])
    listed = [token["content"] for token in tokens[3:]]
    if listed and rng.random() < 0.3:
        config[rng.choice(["additional_special_tokens", "image_token"])] = listed
        if "image_token" in config:
            config["image_token"] = listed[0]
    if rng.random() < 0.2:
        again = [token if rng.random() < 0.7 else with_random_flags(rng, token["content"], token["id"]) for token in tokens]
        config["added_tokens_decoder"] = {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in again}
    companions = {"tokenizer_config": config, "config": {"model_type": model_type}}
    vocab = len(models[kind]["vocab"]) + 16
    if "added_tokens_decoder" not in config and rng.random() < 0.3:
        next_id = max([size - 1] + [token["id"] for token in tokens]) + 1
        companions["added_tokens"] = {text: next_id + i for i, text in enumerate(rng.sample(["<one>", "two words", "<|three|>"], rng.choice([1, 2])))}
    for name in ("config", "generation_config"):
        if rng.random() < 0.4:
            companions.setdefault(name, {})["eos_token_id"] = rng.choice([2, rng.randrange(3, vocab), [rng.randrange(3, vocab), 2]])
    if rng.random() < 0.2:
        companions.setdefault("generation_config", {})["temperature"] = 0.5
    return tokenizer, companions, vocab


def write_model(folder, vocab):
    """One random layer beside config.json, which it completes."""
    path = pathlib.Path(folder, "config.json")
    config = json.loads(path.read_text())
    kind = config["model_type"]
    path.write_text(json.dumps(config | {"vocab_size": vocab, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                                "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64}))
    layer, shapes = "model.layers.0.", {"model.embed_tokens.weight": (vocab, 16), "lm_head.weight": (vocab, 16), "model.norm.weight": (16,)}
    shapes |= {layer + name + ".weight": (16,) for name in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {layer + f"mlp.{name}_proj.weight": (16, 16) for name in ("gate", "up", "down")}
    shapes |= {layer + f"self_attn.{name}_proj.weight": (16, 16) for name in "qkvo"}
    shapes |= {layer + f"self_attn.{name}_proj.bias": (16,) for name in "qkv" if kind == "qwen2"}
    shapes |= {layer + f"self_attn.{name}_norm.weight": (16,) for name in "qk" if kind == "qwen3"}
    save_file({name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}, os.path.join(folder, "model.safetensors"))


def difference(model, reference, texts):
    """What the two make of one text otherwise; None."""
    for text in texts:
        for special in (True, False):
            ids, wanted = model.tokenize(text.encode(), special=special), files.encode(reference, text, special)
            if ids != wanted:
                return text, special, ids, wanted
    reference.encode_special_tokens = False
    wanted = reference.encode("a").ids[:1] == [1] and len(reference.encode("a")) > len(reference.encode("a", add_special_tokens=False))
    first = model.tokenize(b"a", bos=True, special=True)[:1] == [1]
    return None if first == wanted else ("bos", first)


def ends_difference(model, folder, vocab):
    """What ends an answer here and not in transformers, or the other way round, but for known ends, which end one here by their text; None. Where
    generation_config.json names none, transformers stops at none; here config.json's count."""
    try:
        wanted = transformers.GenerationConfig.from_pretrained(folder).eos_token_id
    except OSError:
        wanted = None
    if wanted is None:
        wanted = transformers.GenerationConfig.from_model_config(transformers.AutoConfig.from_pretrained(folder)).eos_token_id
    wanted = set() if wanted is None else {wanted} if isinstance(wanted, int) else set(wanted)
    found = set(model.ends(vocab))
    own = {id for id in found - wanted if model.detokenize([id]) in KNOWN_ENDS}
    return None if found - own == wanted else ("ends", sorted(found), sorted(wanted))


def conversation_difference(model, reference, texts):
    """What the two make of one conversation otherwise; None."""
    specials = [token.content for token in reference.get_added_tokens_decoder().values()]  # what was special once stays so
    for text in texts:
        if any(special in form for special in specials for form in (text, unicodedata.normalize("NFKC", text))):
            continue
        messages = [{"role": role, "content": text} for role in ("user", "assistant")]
        ids, wanted = model.chat_tokens(messages, False), files.encode(reference, model.chat(messages, False), True)
        if ids != wanted:
            return "conversation", text, ids, wanted
    return None


def random_case(rng, folder):
    tokenizer, companions, vocab = random_folder(rng, MODELS)
    texts = files.HARD + files.texts(30, rng)
    files.write_folder(pathlib.Path(folder), tokenizer, companions)
    write_model(folder, vocab)
    pathlib.Path(folder, "chat_template.jinja").write_text(TEMPLATE)
    try:
        reference = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
        reference.encode("a")
    except Exception:  # whatever it may be: there is nothing to compare with
        reference = None

    def compare(model, reference):
        found = difference(model, reference, texts) or conversation_difference(model, reference, texts) or ends_difference(model, folder, vocab)
        return f"{found}\n    {json.dumps(companions)}\n    {json.dumps(tokenizer | {'model': {}})}" if found else None
    return reference, folder, compare


def main():
    transformers.logging.set_verbosity_error()
    return random_cases.run("folders", f"transformers {transformers.__version__}", random_case)


if __name__ == "__main__":
    sys.exit(main())
