"""A model: weights, tokenizer, chat template; what sessions are made from."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ._abi import ffi
from ._calls import Cancel, Handle, Owner, call, call_async
from ._library import lib
from ._streams import reader_struct
from ._values import (
    Arguments,
    Path,
    Text,
    Tokens,
    fill_bytes,
    fill_tokens,
    int32_pointer,
    path_bytes,
    read,
    result,
    token_array,
    tokenize_flags,
)
from .errors import ArgumentError
from .params import SessionOptions, session_struct
from .session import Session
from .stats import MemoryPlan, ModelInfo, TokenFlag, TokenInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

_KEEP_SPECIAL = 1
_ADD_GENERATION_PROMPT = 1

Message = Mapping[str, Any]
"""A turn of a conversation: {"role": "user", "content": "..."}, and what else the template knows of
(tool_calls, tool_call_id, name, ...). content is a str, bytes, None or a list of parts."""


class Metadata(Mapping[str, str]):
    """What a model's files say about it, by key, in the order of the file. Strings are as they are (bytes that
    are no UTF-8 as surrogates, as in file names), everything else is JSON. Any thread.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getitem__(self, key: str) -> str:
        model = self._model._use()
        try:
            name = key.encode("utf-8", "surrogateescape")
        except (AttributeError, UnicodeEncodeError):  # no text, or none that a file could have
            raise KeyError(key) from None
        if b"\0" in name:
            raise KeyError(key)
        try:
            text = fill_bytes(
                256,
                lambda to, capacity, length: call(
                    lambda _, error: lib.wi_model_get_metadata(
                        model.cell[0], name, to, capacity, length, error
                    )
                ),
            )
        except ArgumentError:
            raise KeyError(key) from None
        return text.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        model = self._model._use()
        for index in range(len(self)):
            yield fill_bytes(
                128,
                lambda to, capacity, length, index=index: call(  # type: ignore[misc]
                    lambda _, error: lib.wi_model_metadata_key(
                        model.cell[0], index, to, capacity, length, error
                    )
                ),
            ).decode("utf-8", "surrogateescape")

    def __len__(self) -> int:
        model, count = self._model._use(), ffi.new("uint64_t*")
        call(lambda _, error: lib.wi_model_metadata_count(model.cell[0], count, error))
        return int(count[0])


class Model(Owner):
    """An open model; made by `Runtime.open`. Immutable: any number of threads may use it.

    Closing it leaves its sessions alone.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        info = result("wi_model_info")
        call(lambda _, error: lib.wi_model_get_info(handle.cell[0], info, error))
        self._info = read(info, ModelInfo)

    @property
    def info(self) -> ModelInfo:
        """The model's hyper-parameters."""
        self._use()
        return self._info

    @property
    def metadata(self) -> Metadata:
        """What the model's files say about it, by key."""
        self._use()
        return Metadata(self)

    def token_info(self, token: int) -> TokenInfo:
        """One token of the vocabulary, in [0, vocab). Any thread."""
        model, info = self._use(), result("wi_token_info")
        call(lambda _, error: lib.wi_model_token_info(model.cell[0], token, info, error))
        return TokenInfo(TokenFlag(info.flags), bytes(ffi.buffer(info.text, info.text_length)))

    def tokenize(
        self, text: Text, *, add_bos: bool = False, parse_special: bool = False
    ) -> NDArray[np.int32]:
        """Text to token ids, (tokens): those that the model was trained with.

        add_bos: put the beginning-of-sequence token first, if the model has one
        parse_special: text like <|end|> becomes that control token; else it is text
        Errors: ArgumentError for bytes that the vocabulary has no token for. Any thread.
        """
        model, arguments = self._use(), Arguments()
        data, length = arguments.text(text)
        return fill_tokens(
            length + 8,
            lambda to, capacity, count: call(
                lambda _, error: lib.wi_model_tokenize(
                    model.cell[0],
                    data,
                    length,
                    tokenize_flags(add_bos, parse_special),
                    to,
                    capacity,
                    count,
                    error,
                )
            ),
        )

    def detokenize_bytes(self, tokens: Tokens, *, keep_special: bool = False) -> bytes:
        """Token ids to text, the inverse of `tokenize`: the same bytes, as far as the model's tokenizer keeps
        them. Part of a sequence may end within a code point.

        keep_special: write control tokens as their names; else they are left out. Any thread.
        """
        model, ids = self._use(), token_array(tokens)
        data = int32_pointer(ids)
        return fill_bytes(
            8 * ids.size + 64,
            lambda to, capacity, length: call(
                lambda _, error: lib.wi_model_detokenize(
                    model.cell[0],
                    data,
                    ids.size,
                    _KEEP_SPECIAL if keep_special else 0,
                    to,
                    capacity,
                    length,
                    error,
                )
            ),
        )

    def detokenize(self, tokens: Tokens, *, keep_special: bool = False) -> str:
        """As `detokenize_bytes`, with U+FFFD for bytes that are no UTF-8."""
        return self.detokenize_bytes(tokens, keep_special=keep_special).decode("utf-8", "replace")

    def chat_render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        now: datetime.datetime | None = None,
    ) -> str:
        """Renders a conversation with the chat template of the model's file, as text. To hand it to a session
        take `chat_tokens`: in the text, what a user wrote can no longer be told from what the template wrote.

        messages: oldest first, at least one
        add_generation_prompt: end with the opening of the assistant's answer
        tools: function schemas
        variables: what the template asks for by name: {"enable_thinking": False}
        now: for templates that print a date; default: the clock's time
        Errors: UnsupportedError without a template, FormatError for a broken one, ArgumentError for a
        conversation that it refuses, with its own words. Any thread.
        """
        model, arguments = self._use(), Arguments()
        turns, params = _conversation(arguments, messages, add_generation_prompt, tools, variables, now)
        return fill_bytes(
            4096,
            lambda to, capacity, length: call(
                lambda _, error: lib.wi_model_chat_render(
                    model.cell[0], turns, len(turns), params, to, capacity, length, error
                )
            ),
        ).decode("utf-8", "replace")

    def chat_tokens(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        now: datetime.datetime | None = None,
    ) -> NDArray[np.int32]:
        """Renders a conversation to token ids, for `Session.prefill`. Only the template's own text makes
        control tokens: what messages, tools and variables say is text. Do not take roles from strangers.

        Parameters and errors: as `chat_render`. Any thread.
        """
        model, arguments = self._use(), Arguments()
        turns, params = _conversation(arguments, messages, add_generation_prompt, tools, variables, now)
        return fill_tokens(
            sum(each.content_length for each in turns) + 256,
            lambda to, capacity, count: call(
                lambda _, error: lib.wi_model_chat_tokens(
                    model.cell[0],
                    turns,
                    len(turns),
                    params,
                    to,
                    capacity,
                    count,
                    error,
                )
            ),
        )

    def plan_memory(self, tokens: int, **options: Unpack[SessionOptions]) -> MemoryPlan:
        """What a session of so many tokens, prompt and answer together, would take. Any thread."""
        model, arguments, plan = self._use(), Arguments(), result("wi_memory_plan")
        params, _ = session_struct(arguments, options)
        call(lambda _, error: lib.wi_model_plan_memory(model.cell[0], params, tokens, plan, error))
        return read(plan, MemoryPlan)

    def session(self, **options: Unpack[SessionOptions]) -> Session:
        """Makes an empty session. It takes memory only as tokens come.

        Errors: UnsupportedError for an unknown policy. Any thread.
        """
        model, arguments = self._use(), Arguments()
        params, keeps = session_struct(arguments, options)
        handle = Handle("wi_session", lib.wi_session_release, model, keeps)
        call(lambda _, error: lib.wi_session_create(model.cell[0], params, handle.cell, error), into=handle)
        return Session(handle, self._info.vocab)

    def load(self, path: Path, *, cancel: Cancel | None = None, **options: Unpack[SessionOptions]) -> Session:
        """Reads a session back that `Session.save` wrote. What options leave out is as saved; what shapes the
        stored keys and values must be as saved. As zero means "as saved", "none" is written so:
        kv_budget_bytes=UNLIMITED; sparse_read_tokens and a policy's local_window, estimation, target_mass and
        repeats negative. Sampling is taken whole, and its random numbers start from its seed; without it the saved
        sampler goes on where it was.

        In a runtime with a spill folder keys and values stay in the file, which may be renamed and removed.
        Errors: FileError, FormatError, UnsupportedError, MismatchError for another model or other parameters,
        BudgetError, CancelledError. Any thread.
        """
        model, arguments, name = self._use(), Arguments(), path_bytes(path)
        params, keeps = session_struct(arguments, options)
        handle = Handle("wi_session", lib.wi_session_release, model, keeps)
        call(
            lambda token, error: lib.wi_session_load(model.cell[0], name, params, token, handle.cell, error),
            cancel,
            long=True,
            into=handle,
        )
        return Session(handle, self._info.vocab)

    def load_file(
        self,
        file: BinaryIO,
        size: int | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """As `load`, from a binary file object, of which size bytes are the session's; default: to its end.

        All of it is read into memory. An exception of the file object ends the call and is raised by it.
        """
        model, arguments = self._use(), Arguments()
        reader = reader_struct(arguments, file, size)
        params, keeps = session_struct(arguments, options)
        handle = Handle("wi_session", lib.wi_session_release, model, keeps)
        call(
            lambda token, error: lib.wi_session_load_from(
                model.cell[0], reader, params, token, handle.cell, error
            ),
            cancel,
            long=True,
            into=handle,
        )
        return Session(handle, self._info.vocab)

    async def load_async(self, path: Path, **options: Unpack[SessionOptions]) -> Session:
        """As `load`, beside the event loop; cancelling the asyncio task ends the call."""
        return await call_async(lambda cancel: self.load(path, cancel=cancel, **options))


def _conversation(
    arguments: Arguments,
    messages: Sequence[Message],
    add_generation_prompt: bool,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any] | None,
    now: datetime.datetime | None,
) -> tuple[Any, Any]:
    """Messages and params as the library's structs; what is no plain text goes as JSON."""
    given = list(messages)  # the host's sequence may be another one when it is looked at again
    turns = arguments.keep(ffi.new("wi_chat_message[]", len(given)))
    for index, (turn, message) in enumerate(zip(turns, given, strict=True)):
        what = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise ArgumentError(f"{what} is {message!r}, no mapping")
        fields = dict(message)
        turn.struct_size = ffi.sizeof("wi_chat_message")
        role, content = fields.pop("role", None), fields.get("content")
        if not isinstance(role, str):
            raise ArgumentError(f"{what}: role is {role!r}, no str")
        turn.role = arguments.name("role", role)
        if isinstance(content, str | bytes):
            turn.content, turn.content_length = arguments.text(fields.pop("content"))
        elif content is not None and not isinstance(content, list | tuple):
            raise ArgumentError(f"{what}: content is {content!r}, neither text nor None nor a list of parts")
        if fields:
            turn.fields_json = arguments.name(what, _json(what, fields))
    params = arguments.struct(
        "wi_chat_params",
        flags=_ADD_GENERATION_PROMPT if add_generation_prompt else 0,
        tools_json=arguments.name("tools", _json("tools", tools)),
        variables_json=arguments.name("variables", _json("variables", variables)),
        now=int(now.timestamp()) if now is not None else 0,
    )
    return turns, params


def _json(what: str, value: object) -> str | None:
    if value is None:
        return None
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as problem:
        raise ArgumentError(f"{what} is none that JSON can say: {problem}") from None
