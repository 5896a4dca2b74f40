"""Runtime and model: opening, what they say of themselves, tokens and conversations."""

import datetime
import gc
import io
import json
import logging
import mmap
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL, answer, some_tokens

import waveinfer
from waveinfer import LogLevel, Policy, Precision, Runtime, TokenFlag, Weights


def test_a_runtime_takes_every_parameter(tmp_path: Path) -> None:
    with Runtime(
        threads=1,
        device="cpu",
        kv_budget_bytes=10_000_000,
        huge_pages=waveinfer.HugePages.OFF,
        bind_threads=waveinfer.BindThreads.OFF,
        log=lambda _level, _message: None,
        log_level=LogLevel.DEBUG,
        nice=1,
        task_wait_ms=20,
        spill_folder=tmp_path,
        spill_bytes=1 << 30,
        buffer_manager=waveinfer.BufferManager.BUCKETED,
    ) as runtime:
        assert runtime.device_info().threads == 1
        assert runtime.stats().kv_budget_bytes == 10_000_000


def test_a_session_larger_than_its_memory_goes_on_in_the_spill_folder(tmp_path: Path) -> None:
    tokens = some_tokens(12000)
    with Runtime() as runtime, runtime.open(MODEL) as model, model.session() as session:
        session.prefill(tokens)
        expected = answer(session)
    with (
        Runtime(spill_folder=tmp_path) as runtime,
        runtime.open(MODEL) as model,
        model.session(kv_fast_share=0.1) as session,
    ):
        session.prefill(tokens)
        assert answer(session) == expected
        stats = session.stats()
        assert stats.slow_bytes > 0
        assert stats.buffer_admissions + stats.buffer_refusals + stats.buffer_late == stats.buffer_misses
        assert runtime.stats().slow_written_bytes > 0


def test_the_policies_are_named(runtime: Runtime) -> None:
    assert {each.name for each in runtime.policies()} >= {"full", "wave"}
    assert all(each.description for each in runtime.policies())


def test_devices_say_whether_they_can_be_used() -> None:
    cpu, *others = waveinfer.devices()
    assert cpu.name == "cpu"
    assert cpu.usable
    assert not cpu.reason
    assert others
    assert all(bool(other.usable) != bool(other.reason) for other in others)


def test_an_unknown_device_is_unsupported() -> None:
    with pytest.raises(waveinfer.UnsupportedError, match="abacus"):
        Runtime(device="abacus")


def test_the_model_says_what_it_is(model: waveinfer.Model) -> None:
    info = model.info
    assert (info.architecture, info.layers, info.vocab, info.name) == ("llama", 4, 4096, "Needle-3M")
    assert info.chat_family == "template"


def test_metadata_is_a_mapping(model: waveinfer.Model) -> None:
    assert model.metadata["general.architecture"] == "llama"
    assert json.loads(model.metadata["llama.block_count"]) == 4
    assert len(list(model.metadata)) == len(model.metadata) > 10
    assert "no such key" not in model.metadata
    with pytest.raises(KeyError):
        model.metadata["general\0name"]
    assert len(json.loads(model.metadata["tokenizer.ggml.tokens"])) == model.info.vocab


def test_tokens_and_text_are_each_other_s_inverse(model: waveinfer.Model, rng: random.Random) -> None:
    for _ in range(50):
        text = "".join(
            chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xA0, 0xD7FF), 0x1F600])) for _ in range(40)
        )
        assert model.detokenize(model.tokenize(text)) == text


def test_text_may_hold_nul_and_any_bytes(model: waveinfer.Model) -> None:
    for text in (b"a\0b", b"\xff\xfe\x80", bytes(range(256))):
        assert model.detokenize_bytes(model.tokenize(text)) == text
    assert model.detokenize(model.tokenize(b"\xff")) == "\ufffd"
    assert model.tokenize("").size == 0
    assert model.detokenize([]) == ""


def test_flags_of_tokenize_and_detokenize(model: waveinfer.Model) -> None:
    plain, bos = model.tokenize("x"), model.tokenize("x", add_bos=True)
    assert bos.tolist() == [model.info.bos_token, *plain.tolist()]
    end = model.tokenize("<|end|>", parse_special=True)
    assert end.size == 1 < model.tokenize("<|end|>").size
    assert model.detokenize(end) == ""
    assert model.detokenize(end, keep_special=True) == "<|end|>"
    info = model.token_info(int(end[0]))
    assert info.flags & TokenFlag.CONTROL
    assert info.text == b"<|end|>"


def test_a_token_of_long_text_needs_more_room_than_is_guessed(model: waveinfer.Model) -> None:
    longest = max(range(model.info.vocab), key=lambda token: len(model.token_info(token).text))
    text = model.token_info(longest).text
    assert model.detokenize_bytes([longest] * 1000, keep_special=True) == text * 1000


def test_a_conversation_is_rendered(model: waveinfer.Model) -> None:
    turns: list[waveinfer.Message] = [
        {"role": "user", "content": "Hi <|end|>"},
        {"role": "assistant", "content": b"Yes"},
    ]
    text = model.chat_render(turns, add_generation_prompt=True)
    assert text.startswith("<|bos|><|user|>\nHi <|end|>")
    tokens = model.chat_tokens(turns, add_generation_prompt=True)
    assert model.detokenize(tokens, keep_special=True) == text
    assert np.count_nonzero(tokens == model.tokenize("<|end|>", parse_special=True)[0]) == 2


def test_everything_of_a_conversation_is_passed(model: waveinfer.Model) -> None:
    parts = [{"type": "text", "text": "a part"}]
    assert "a part" in model.chat_render([{"role": "user", "content": parts, "name": "x"}])
    text = model.chat_render(
        [{"role": "user", "content": "a\0b", "name": "x"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        variables={"enable_thinking": False, "Größe": 1},
        now=datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
    )
    assert "a\0b" in text
    with pytest.raises(waveinfer.ArgumentError, match="NUL"):
        model.chat_render([{"role": "us\0er", "content": ""}])
    with pytest.raises(waveinfer.ArgumentError):
        model.chat_tokens([])


class Growing(list[waveinfer.Message]):
    """As one that another thread appends to: it has more messages each time somebody asks how many."""

    def __len__(self) -> int:
        self.extend([self[0]] * 1000)
        return super().__len__()


def test_a_conversation_that_grows_is_what_it_was_when_it_was_looked_at(model: waveinfer.Model) -> None:
    turns: list[waveinfer.Message] = [{"role": "user", "content": "Hi"}]
    for render in (model.chat_render, model.chat_tokens):
        expected = list(render(turns))
        given = list(render(Growing(turns)))
        assert given[: len(expected)] == expected


def test_a_conversation_that_is_none_is_refused(model: waveinfer.Model) -> None:
    wrong: list[object] = [
        {"content": "x"},
        {"role": None, "content": "x"},
        {"role": 1, "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": {"text": "x"}},
        {"role": "user", "content": "x", "name": {1}},
        {"role": "user", "content": [b"x"]},
        "user",
    ]
    for message in wrong:
        for render in (model.chat_render, model.chat_tokens):
            with pytest.raises(waveinfer.ArgumentError, match=r"messages\[1\]"):
                render([{"role": "user", "content": "x"}, message])  # type: ignore[list-item]
    with pytest.raises(waveinfer.ArgumentError, match="tools"):
        model.chat_render([{"role": "user", "content": "x"}], tools=[{"type": {1}}])


def test_what_is_no_text_is_no_key_of_the_metadata(model: waveinfer.Model) -> None:
    for key in (5, None, b"general.name", ("general.name",), "\ud800", "a\0b"):
        assert key not in model.metadata
    assert "general.name" in model.metadata


def test_a_model_opens_from_memory_a_mapping_and_a_file_object() -> None:
    data = MODEL.read_bytes()
    expected = None
    with (
        Runtime() as runtime,
        MODEL.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        opened = [
            runtime.open(MODEL, precision=Precision.FAST, weights=Weights.COPIED),
            runtime.open_memory(data),
            runtime.open_memory(bytearray(data), weights=Weights.COPIED),
            runtime.open_memory(mapped, weights=Weights.COPIED),
            runtime.open_file(io.BytesIO(data)),
            runtime.open_file(file, len(data)),
        ]
        for model in opened:
            with model, model.session() as session:
                session.append_text("In the beginning", add_bos=True)
                tokens = answer(session)
                expected = expected or tokens
                assert tokens == expected


def test_memory_of_a_model_lives_as_long_as_its_sessions(runtime: Runtime) -> None:
    model = runtime.open_memory(bytes(bytearray(MODEL.read_bytes())))
    session = model.session()
    session.append_text("In the beginning", add_bos=True)
    fork = session.fork()
    expected = answer(session)
    model.close()
    session.close()
    del model, session
    filler = [bytes(7_000_000) for _ in range(10)]
    assert answer(fork) == expected
    assert len(filler) == 10


def test_a_plan_of_memory(model: waveinfer.Model) -> None:
    plan = model.plan_memory(100_000, policy=Policy("full"), kv_type=waveinfer.KvType.F32)
    assert plan.fits is True
    assert plan.kv_bytes >= 100_000 * model.info.kv_bytes_per_token * 2
    assert not model.plan_memory(10_000, kv_budget_bytes=1000).fits


def test_a_log_is_a_function_or_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    said: list[tuple[LogLevel, str]] = []
    with Runtime(log=lambda level, text: said.append((level, text)), log_level=LogLevel.DEBUG) as runtime:
        runtime.open(MODEL).close()
    logger = logging.getLogger("waveinfer.test")
    with (
        caplog.at_level(logging.DEBUG, logger.name),
        Runtime(log=logger, log_level=LogLevel.DEBUG) as runtime,
    ):
        runtime.open(MODEL).close()
    assert said
    assert [record.getMessage() for record in caplog.records]


def test_a_log_is_given_back_when_nothing_can_log_any_more() -> None:
    from waveinfer._calls import _logs

    gc.collect()  # what others left in cycles
    before = len(_logs)
    runtime = Runtime(log=lambda _level, _text: None)
    session = runtime.open(MODEL).session()
    assert len(_logs) == before + 1
    runtime.close()
    assert len(_logs) == before + 1
    session.close()
    assert len(_logs) == before
    with pytest.raises(waveinfer.UnsupportedError):
        Runtime(device="abacus", log=lambda _level, _text: None)
    assert len(_logs) == before


def test_files_that_are_wrong_say_so(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(waveinfer.FileError, match=r"missing\.gguf") as missing:
        runtime.open(tmp_path / "missing.gguf")
    assert missing.value.errno == 2
    assert isinstance(missing.value, OSError)
    (tmp_path / "broken.gguf").write_bytes(MODEL.read_bytes()[:100_000])
    with pytest.raises(waveinfer.FormatError):
        runtime.open(tmp_path / "broken.gguf")
    with pytest.raises(waveinfer.ArgumentError, match="NUL"):
        runtime.open("a\0b")


def test_numbers_out_of_range_are_errors(runtime: Runtime, model: waveinfer.Model) -> None:
    with pytest.raises(waveinfer.ArgumentError, match="threads"):
        Runtime(threads=2**40)
    with pytest.raises(waveinfer.ArgumentError):
        Runtime(threads=-1)
    with pytest.raises(waveinfer.ArgumentError):
        model.token_info(2**40)
    with pytest.raises(waveinfer.ArgumentError):
        model.token_info(-1)
    with pytest.raises(waveinfer.ArgumentError):
        model.detokenize([2**40])
    with pytest.raises(waveinfer.ArgumentError):
        model.detokenize(np.array([0.5]))
    with pytest.raises(waveinfer.ArgumentError):
        model.session(kv_budget_bytes=-1)
    with pytest.raises(TypeError, match="no option"):
        model.session(colour=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="kv_budget_bytes"):
        Runtime(kv_budget_bytes="much")  # type: ignore[arg-type]
    assert runtime.stats().sessions == 0
