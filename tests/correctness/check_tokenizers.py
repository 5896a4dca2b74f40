"""Token ids of hard strings, here, in the reference libraries and in llama.cpp, for every pre-tokenizer.

    check_tokenizers.py --library build/lib/libwaveinfer.so [--only NAME] [--seed N] [--random N] [--texts N] [--verbose]

Vocabularies are the small trained ones of tests/fixtures/tokenizers, each written as a GGUF file (with one random
layer, as this library opens no file without weights) under every name that llama.cpp and this library know the
pre-tokenizer by. Texts are the fixtures' and --random new ones over all Unicode categories, and bytes that are no UTF-8.
What must hold:
  of valid UTF-8, this library's ids equal those of tokenizers (of sentencepiece for that one), special tokens
    parsed and not parsed;
  sentencepiece's model file is not kept, so for random texts llama.cpp stands for it;
  every text and every sequence of bytes comes back from its ids unchanged;
  BOS is put first by default where llama.cpp does;
  by every other name the ids are the same as llama.cpp's by that name wherever llama.cpp equals the reference.
Then every construct of tokenizer.json that is supported (tests/fixtures/make_tokenizer_files.py), as a model directory
with one random layer: of --texts random texts the ids must be those of tokenizers, set up by transformers where other files
have a say.
llama.cpp has its own reading of the regular expressions, so where it alone differs the number is printed (--verbose:
the texts), and held against nobody. Bytes that are no UTF-8 are not given to it: some of them end its process (0.3.36).
"""
import argparse
import json
import os
import pathlib
import random
import sys
import tempfile

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(TESTS / "support"), str(TESTS / "fixtures")]
import llama
import make_tokenizer_files as files
import make_tokenizers as fixtures
import waveinfer

# Other names of each fixture's pre-tokenizer (src/tokenizer/pre_tokenizer.cpp)
ALIASES = {
    "llama-bpe": ["llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
    "qwen2": ["deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "grok-2"],
    "gpt-2": ["phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0", "mellum"],
    "smollm": ["starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
    "gpt-4o": ["llama4"],
    "tekken": [],
    "deepseek-v3": ["hunyuan-dense"],
    "deepseek-llm": [],
    "deepseek-coder": [],
    "sample": [],
    "sentencepiece": [],
}
NO_UTF8 = [b"\xff", b"\xc3", b"a\xc3", b"\xc3 a", b"\xe4\xb8", b"a\xe4\xb8b", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80",
           b"\xf4\x90\x80\x80", b"x\xfe\xffy", b"\x80" * 40, b"\xf0\x9f\x98\x80\x80 ok"]


def write_gguf(path, fixture, pre, name=None):
    writer = gguf.GGUFWriter(path, "llama")
    if name:
        writer.add_name(name)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_rope_dimension_count(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(fixture["tokens"])
    writer.add_token_types(fixture["kinds"])
    writer.add_bos_token_id(fixture["bos"])
    writer.add_eos_token_id(fixture["eos"])
    if fixture["model"] == "byte_bpe":
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(fixture["merges"])
    else:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(fixture["scores"])
        writer.add_unk_token_id(fixture["unknown"])
        writer.add_add_space_prefix(fixture["add_space_prefix"])
    for name, shape in {"token_embd": (len(fixture["tokens"]), 32), "output_norm": (32,), "blk.0.attn_norm": (32,),
                        "blk.0.ffn_norm": (32,), **{f"blk.0.{m}": (32, 32) for m in ("attn_q", "attn_k", "attn_v", "attn_output",
                                                                                 "ffn_gate", "ffn_up", "ffn_down")}}.items():
        writer.add_tensor(name + ".weight", np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def reference(name, fixture):
    """text -> ids, with special tokens parsed or not; None for sentencepiece, which has its ids in the fixture"""
    if fixture["model"] != "byte_bpe":
        return None
    tokens = fixture["tokens"]
    kinds = dict(zip(tokens, fixture["kinds"]))
    merges = [tuple(merge.split(" ")) for merge in fixture["merges"]]
    known = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=known, merges=merges, ignore_merges=fixture["ignore_merges"]))
    patterns = [fixtures.QWEN2] if name == "sample" else fixtures.BYTE_BPE[name][0]
    tokenizer.pre_tokenizer = fixtures.pre_tokenizer(patterns)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in tokens if kinds[t] == 3])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in tokens if kinds[t] == 4])

    def encode(text, special):
        tokenizer.encode_special_tokens = not special
        return tokenizer.encode(text, add_special_tokens=False).ids
    return encode


class Tally:
    def __init__(self, verbose):
        self.failed, self.verbose, self.shown = 0, verbose, 0

    def fail(self, *what):
        self.failed += 1
        if self.shown < 20 or self.verbose:
            print("  FAILED", *what, flush=True)
        self.shown += 1


def check(name, fixture, library, folder, texts, tally):
    encode = reference(name, fixture)
    path = folder / "vocabulary.gguf"
    write_gguf(path, fixture, fixture.get("pre_tokenizer"))
    ours, theirs = library.open(path), llama.Model(path, vocab_only=True)
    check_bos(name, ours, theirs, tally)
    cases = []  # (text, special, the reference's ids)
    for case in fixture["cases"]:
        cases += [(case["text"], True, case["ids"])]
        cases += [(case["text"], False, case.get("plain_ids", case["ids"]))] if encode else []
    encode = encode or (lambda text, special: theirs.tokenize(text.encode(), special=special))
    cases += [(text, special, encode(text, special)) for text in texts for special in (False, True)]
    peer_equal, sound = 0, []  # sound: where llama.cpp equals the reference
    for text, special, wanted in cases:
        data = text.encode()
        got = ours.tokenize(data, special=special)
        if got != wanted:
            tally.fail(name, repr(text), "special" if special else "plain", got, "wanted", wanted)
        peer = theirs.tokenize(data, special=special)
        if peer == wanted:
            peer_equal += 1
            sound.append((text, special))
        elif tally.verbose:
            print("  llama.cpp alone:", repr(text), peer, "reference", wanted)
    for data in [text.encode() for text in texts] + NO_UTF8:
        back = ours.detokenize(ours.tokenize(data))
        if back != data:
            tally.fail(name, data, "came back as", back)
    print(f"{name}: {len(cases)} equal to {'tokenizers' if fixture['model'] == 'byte_bpe' else 'sentencepiece or llama.cpp'} unless named above, llama.cpp in {peer_equal} "
          "of them", flush=True)
    for alias in ALIASES[name]:
        check_alias(name, alias, fixture, library, path, sound, tally)
    if name == "sentencepiece":
        check_phi3(fixture, library, path, texts, tally)


def check_bos(name, ours, theirs, tally):
    """Whether BOS comes first where the file does not say"""
    if (mine := ours.tokenize(b"a", bos=True)) != (peer := theirs.tokenize(b"a", bos=True)):
        tally.fail(f"{name}: BOS by default: {mine}, llama.cpp {peer}")


def check_alias(name, alias, fixture, library, path, sound, tally):
    write_gguf(path, fixture, alias)
    try:
        theirs = llama.Model(path, vocab_only=True)
    except RuntimeError:
        print(f"  {alias}: this llama.cpp does not know it, not compared")
        return
    ours, before = library.open(path), tally.failed
    check_bos(alias, ours, theirs, tally)
    different = [(text, special) for text, special in sound
                 if ours.tokenize(text.encode(), special=special) != theirs.tokenize(text.encode(), special=special)]
    for text, special in different:
        tally.fail(f"{alias} (as {name})", repr(text), ours.tokenize(text.encode(), special=special), "llama.cpp",
                   theirs.tokenize(text.encode(), special=special))
    print(f"  {alias}: {len(sound) - len(different)} of {len(sound)} equal{'' if tally.failed == before else '  FAILED'}", flush=True)


def check_phi3(fixture, library, path, texts, tally):
    """Whose tokens take white space along, as the model's name has llama.cpp do: there ASCII's alone, here the model's own tokenizer's"""
    texts = [text for text in texts if not any(c.isspace() and not c.isascii() for c in text)]
    end = "<|endoftext|>"  # which llama.cpp wants every such file to have
    fixture = fixture | {"tokens": fixture["tokens"][:-1] + [end], "kinds": fixture["kinds"][:-1] + [3]}
    write_gguf(path, fixture, None, "Tiny Phi-3")
    ours, theirs, marks = library.open(path), llama.Model(path, vocab_only=True), ["<unk>", "<s>", "</s>", "<|end|>", end]
    cases = [(mark.join(text[at:at + 5] for at in range(0, len(text), 5)) + mark, special)
             for text, mark in zip(texts, marks * len(texts)) for special in (False, True)]
    different = [case for case in cases if ours.tokenize(case[0].encode(), special=case[1]) != theirs.tokenize(case[0].encode(), special=case[1])]
    for text, special in different:
        tally.fail("phi-3", repr(text), "special" if special else "plain")
    print(f"  Tiny Phi-3: {len(cases) - len(different)} of {len(cases)} equal to llama.cpp", flush=True)


def write_model(folder, vocab, config):
    """config.json, with what a file's companion says, and model.safetensors of one layer of zeros"""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": vocab, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "head_dim": 32} | config
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {"model.embed_tokens": [vocab, 32], "model.norm": [32], layer + "input_layernorm": [32], layer + "post_attention_layernorm": [32]}
    if config["model_type"] == "qwen3":
        shapes |= {f"{layer}self_attn.{m}_norm": [32] for m in "qk"}
    shapes |= {f"{layer}self_attn.{m}_proj": [32, 32] for m in "qkvo"} | {f"{layer}mlp.{m}_proj": [32, 32] for m in ("gate", "up", "down")}
    shapes = {name + ".weight": shape for name, shape in shapes.items()}
    if config["model_type"] == "qwen2":
        shapes |= {f"{layer}self_attn.{m}_proj.bias": [32] for m in "qkv"}
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + 4 * int(np.prod(shape))]}
        end += 4 * int(np.prod(shape))
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def check_file(file, trained, library, texts, tally):
    tokenizer = files.file_of(trained[file["model"]], file["changes"], file["steps"])
    theirs, different = files.reference(tokenizer, file["companions"]), 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files.write_folder(folder, tokenizer, file["companions"])
        write_model(folder, file["vocab"], file["companions"].get("config", {}))
        ours = library.open(folder)
        for text in texts:
            for special in (False, True):
                got, wanted = ours.tokenize(text.encode(), special=special), files.encode(theirs, text, special)
                if got != wanted:
                    different += 1
                    tally.fail(file["name"], repr(text), "special" if special else "plain", got, "wanted", wanted)
    print(f"{file['name']}: {different} of {2 * len(texts)} differ from tokenizers", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--only", action="append")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--random", type=int, default=300)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    print(f"tokenizers: seed {args.seed}, llama-cpp-python {llama.VERSION}")
    library, tally = waveinfer.Library(args.library), Tally(args.verbose)
    texts = fixtures.category_texts(args.random, random.Random(args.seed))
    with tempfile.TemporaryDirectory() as folder:
        for name in ALIASES:
            if not args.only or name in args.only:
                fixture = json.loads((TESTS / "fixtures" / "tokenizers" / f"{name}.json").read_text())
                check(name, fixture, library, pathlib.Path(folder), texts, tally)
    known = json.loads((TESTS / "fixtures" / "tokenizer_files.json").read_text())
    rng = random.Random(args.seed)
    texts = files.HARD + fixtures.HARD + files.texts(args.texts // 2, rng) + fixtures.category_texts(args.texts // 2, rng)
    for file in known["files"]:
        if not args.only or file["name"] in args.only:
            check_file(file, known["models"], library, texts, tally)
    print(f"tokenizers: {tally.failed} failures")
    return tally.failed > 0


if __name__ == "__main__":
    sys.exit(main())
