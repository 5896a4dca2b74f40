"""Sessions: reading, writing, forks, files, sampling, batches."""

import gc
import io
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL, answer, some_tokens
from numpy.typing import NDArray

import waveinfer
from waveinfer import EventKind, KvType, Model, Policy, Precision, Sampling, Session


def test_pieces_give_the_same_as_the_whole(runtime: waveinfer.Runtime) -> None:
    tokens = some_tokens(3000)
    # In f32: chunks of other sizes add up in another order, and what FAST's bf16 makes of that is another token
    # where two are as likely, as they are after tokens that mean nothing.
    with (
        runtime.open(MODEL, precision=Precision.F32) as model,
        model.session(kv_type=KvType.F32) as session,
        model.session(kv_type=KvType.F32) as other,
    ):
        session.prefill(tokens)
        other.prefill(tokens[:1000].tolist())
        other.prefill(tokens[1000:], chunk_tokens=256)
        assert other.tokens().tolist() == tokens.tolist()
        np.testing.assert_allclose(other.logits(), session.logits(), atol=1e-3)  # 5e-5 here
        assert answer(other) == answer(session)


def test_text_is_tokenised_and_read(model: Model, session: Session) -> None:
    session.append_text("In the beginning", add_bos=True)
    assert session.tokens().tolist() == model.tokenize("In the beginning", add_bos=True).tolist()
    session.append_text(b"<|end|>", parse_special=True)
    assert session.tokens()[-1] == model.tokenize("<|end|>", parse_special=True)[0]


def test_events_tell_text_logprob_and_the_likeliest(model: Model) -> None:
    with model.session(sampling=Sampling(top_logprobs=5)) as session:
        session.append_text("In the beginning God created the heaven and the", add_bos=True)
        logits = session.logits().astype(np.float64)
        expected = logits - np.logaddexp.reduce(logits)
        event = session.decode()
        assert event.kind is EventKind.TOKEN
        assert event.token == int(np.argmax(logits))
        assert event.logprob == pytest.approx(expected[event.token], abs=1e-4)
        assert [each.token for each in event.top] == np.argsort(-expected, kind="stable")[:5].tolist()
        assert event.top[0] == (event.token, event.logprob)
        assert isinstance(event.text, str)


def test_logits_of_a_prompt_are_those_of_each_token(session: Session) -> None:
    logits = session.prefill_logits(some_tokens(20))
    assert logits.shape == (20, 4096)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits[-1], session.logits(), atol=0.1)
    assert session.prefill_logits([]).shape == (0, 4096)


def test_accept_is_decode_with_a_sampler_of_one_s_own(model: Model, session: Session) -> None:
    session.prefill(some_tokens(100))
    with session.fork() as other:
        expected = answer(session)
        found = []
        for _ in expected:
            found.append(int(np.argmax(other.logits())))
            assert other.accept(found[-1]).token == found[-1]
        assert found == expected
        with pytest.raises(waveinfer.ArgumentError):
            other.accept(model.info.vocab)
        with pytest.raises(waveinfer.ArgumentError):
            other.accept(2**31)


def test_a_stream_ends_with_the_answer_or_its_limit(model: Model, session: Session) -> None:
    session.prefill(
        model.chat_tokens(
            [{"role": "user", "content": "The word of Ann is fox.\n\nWhat is the word of Ann?"}],
            add_generation_prompt=True,
        )
    )
    with session.fork() as other:
        events = list(session.stream())
        assert [event.kind for event in events[:-1]] == [EventKind.TOKEN] * (len(events) - 1)
        assert events[-1].kind is EventKind.END
        assert len(list(other.stream(max_tokens=2))) == 2


def test_the_same_seed_gives_the_same_tokens(model: Model) -> None:
    def tokens(seed: int) -> list[int]:
        with model.session(
            sampling=Sampling(temperature=1.5, top_k=50, top_p=0.95, min_p=0.01, seed=seed)
        ) as session:
            session.prefill(some_tokens(50))
            return answer(session, 20)

    assert tokens(2**64 - 1) == tokens(2**64 - 1) != tokens(1)


def test_bias_and_callback_forbid_tokens(session: Session) -> None:
    session.prefill(some_tokens(50))
    best = int(np.argmax(session.logits()))
    with session.fork() as other:
        other.set_sampling(Sampling(logit_bias={best: float("-inf")}))
        second = other.decode().token
        assert second != best

    kept: list[NDArray[np.float32]] = []

    def forbid(logits: NDArray[np.float32]) -> None:
        assert logits.shape == (4096,)
        kept.append(logits)
        logits[best] = -np.inf

    with session.fork() as other:
        other.set_sampling(Sampling(logits=forbid))
        assert other.decode().token == second
        with other.fork() as inherits:
            other.close()
            calls = len(kept)
            inherits.decode()
            assert len(kept) == calls + 1
    assert kept[0][best] == -np.inf  # ours to keep, whatever became of the library's


def test_stop_texts_end_an_answer_and_are_never_told(session: Session) -> None:
    session.append_text("In the beginning", add_bos=True)
    with session.fork() as other:
        text = "".join(event.text for event in other.stream(20))
    stop = text[5:9]
    session.set_sampling(Sampling(stops=[stop, b"\xff never"]))
    events = list(session.stream(20))
    assert events[-1].kind is EventKind.STOP
    assert "".join(event.text for event in events) == text[: text.index(stop)]


def test_truncation_brings_a_session_back(session: Session) -> None:
    session.prefill(some_tokens(500))
    first = answer(session)
    session.truncate(500)
    assert answer(session) == first
    with pytest.raises(waveinfer.ArgumentError):
        session.truncate(10_000)
    with pytest.raises(waveinfer.ArgumentError):
        session.truncate(-1)


def test_a_fork_under_another_policy_reads_the_same_past(session: Session) -> None:
    session.prefill(some_tokens(9000))
    with session.fork_as(policy=Policy("full"), sampling=Sampling(top_logprobs=1)) as full:
        assert full.tokens().tolist() == session.tokens().tolist()
        assert len(full.decode().top) == 1
        full.decode()
        assert full.stats().estimated_coverage == pytest.approx(1)
    with pytest.raises(waveinfer.ArgumentError):
        session.fork_as(kv_type=KvType.F32)
    with pytest.raises(waveinfer.UnsupportedError, match="psychic"):
        session.fork_as(policy=Policy("psychic"))


def test_a_fork_that_is_given_no_sampling_has_its_parent_s_callback(model: Model) -> None:
    called: list[bool] = []
    session = model.session(sampling=Sampling(logits=lambda _: called.append(True)))
    session.prefill(some_tokens(10))
    with session.fork_as(sampling=None) as fork:  # type: ignore[arg-type]
        session.close()
        del session
        gc.collect()
        assert fork.decode().kind is EventKind.TOKEN
    assert called == [True]


def test_a_saved_session_goes_on_where_it_was(model: Model, session: Session, tmp_path: Path) -> None:
    session.prefill(some_tokens(3000))
    path = tmp_path / "größe.session"
    session.save(path)
    memory = io.BytesIO()
    session.save_file(memory)
    assert path.read_bytes() == memory.getvalue()
    assert session.saved_bytes() == len(memory.getvalue())
    expected = answer(session)
    memory.seek(0)
    with path.open("rb", buffering=0) as raw:
        for loaded in (
            model.load(path),
            model.load(path, kv_budget_bytes=waveinfer.UNLIMITED, sampling=Sampling()),
            model.load_file(memory),
            model.load_file(raw, len(memory.getvalue())),
        ):
            with loaded:
                assert answer(loaded) == expected
    with path.open("wb", buffering=0) as raw:
        session.save_file(raw)
    with pytest.raises(waveinfer.MismatchError):
        model.load(path, kv_type=KvType.F32)


def test_a_damaged_file_is_refused(model: Model, session: Session, tmp_path: Path) -> None:
    session.prefill(some_tokens(100))
    path = tmp_path / "saved"
    session.save(path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(waveinfer.FormatError):
        model.load(path)
    with pytest.raises(waveinfer.FileError):
        session.save(tmp_path / "no" / "such" / "folder")


def test_a_batch_gives_each_session_its_own_token(model: Model) -> None:
    sessions = [model.session() for _ in range(4)]
    for i, session in enumerate(sessions):
        session.prefill(some_tokens(100, i))
    forks = [session.fork() for session in sessions]
    for _ in range(3):
        events = waveinfer.decode_batch(sessions)
        assert [event.token for event in events] == [fork.decode().token for fork in forks]
    assert waveinfer.decode_batch([]) == []
    with pytest.raises(waveinfer.BusyError):
        waveinfer.decode_batch([sessions[0], sessions[0]])
    with model.session() as empty, pytest.raises(waveinfer.StateError, match=r"sessions\[1\]"):
        waveinfer.decode_batch([sessions[0], empty])
    sessions[2].close()
    with pytest.raises(waveinfer.ClosedError):
        waveinfer.decode_batch(sessions)


def test_a_budget_that_is_spent_says_so(model: Model) -> None:
    with model.session(kv_budget_bytes=1_000_000) as session:
        session.prefill(some_tokens(100))
        with pytest.raises(waveinfer.BudgetError) as error:
            session.prefill(some_tokens(20000))
        assert error.value.status is waveinfer.Status.BUDGET
        assert session.stats().tokens == 100
        session.decode()


def test_an_empty_session_has_nothing_to_decode(session: Session) -> None:
    with pytest.raises(waveinfer.StateError):
        session.decode()
    with pytest.raises(waveinfer.StateError):
        session.logits()
    assert session.tokens().size == 0
    session.prefill([])
    session.append_text("")


def test_arrays_of_any_integers_are_tokens(session: Session) -> None:
    for tokens in ([1, 2], (1, 2), np.array([1, 2]), np.array([1, 9, 2, 9], np.int16)[::2], range(1, 3)):
        session.truncate(0)
        session.prefill(tokens)  # type: ignore[arg-type]
        assert session.tokens().tolist() == [1, 2]
    for wrong in (np.zeros((2, 2), np.int32), [0.5], [2**31], [2**70], ["a"], [-1]):
        with pytest.raises(waveinfer.ArgumentError):
            session.prefill(wrong)  # type: ignore[arg-type]
