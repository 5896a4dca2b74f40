"""The little of the C ABI that comparisons in Python need, by ctypes: tokenize, detokenize, chat_render, chat_tokens, logits.

    model = waveinfer.Library("build/lib/libwaveinfer.so").open("model.gguf")
"""
import ctypes as c
import json

import numpy as np


class Error(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("code", c.c_int32), ("native_code", c.c_int64), ("message", c.c_char * 512)]


class ModelParams(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("precision", c.c_int32), ("progress", c.c_void_p), ("progress_user", c.c_void_p)]


class PolicyParams(c.Structure):  # a caller may know less of a struct than the library
    _fields_ = [("struct_size", c.c_uint32), ("segment_tokens", c.c_int32), ("name", c.c_char_p)]


class SessionParams(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("kv_type", c.c_int32), ("policy", c.POINTER(PolicyParams))]


class PrefillParams(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("chunk_tokens", c.c_int32), ("progress", c.c_void_p), ("progress_user", c.c_void_p),
                ("logits", c.POINTER(c.c_float)), ("logits_capacity", c.c_uint64)]


class Event(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("kind", c.c_int32), ("token", c.c_int32), ("reserved", c.c_int32),
                ("text", c.c_char_p), ("text_length", c.c_uint64)]


class TokenInfo(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("flags", c.c_int32), ("text", c.c_void_p), ("text_length", c.c_uint64)]


class ChatMessage(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("reserved", c.c_int32), ("role", c.c_char_p), ("content", c.c_char_p),
                ("content_length", c.c_uint64), ("fields_json", c.c_char_p)]


class ChatParams(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("flags", c.c_uint32), ("tools_json", c.c_char_p), ("variables_json", c.c_char_p),
                ("now", c.c_int64)]


TOKEN_END = 2  # WI_TOKEN_END
PRECISIONS = {"fast": 0, "f32": 1, "high": 2, "int8": 3}  # WI_PRECISION_*


def sized(struct, **fields):
    return struct(struct_size=c.sizeof(struct), **fields)


class Failure(Exception):
    """A call failed; args[0] is the library's message."""


class Library:
    def __init__(self, path):
        self.c = c.CDLL(path)
        self.runtime = c.c_void_p()
        self.call("wi_runtime_create", None, c.byref(self.runtime))

    def call(self, name, *arguments):
        error = sized(Error)
        if getattr(self.c, name)(*arguments, c.byref(error)):
            raise Failure(f"{name}: {error.message.decode()}")

    def open(self, path, precision="f32"):
        return Model(self, path, precision)


class Model:
    def __init__(self, library, path, precision):
        self.library, self.handle = library, c.c_void_p()
        library.call("wi_model_open", library.runtime, str(path).encode(), c.byref(sized(ModelParams, precision=PRECISIONS[precision])),
                     None, c.byref(self.handle))

    def __del__(self):
        if self.handle:
            self.library.c.wi_model_release(self.handle)

    def tokenize(self, text, bos=False, special=False):
        """bytes -> ids"""
        call = lambda ids, room, count: self.library.call("wi_model_tokenize", self.handle, text, c.c_uint64(len(text)),
                                                          c.c_uint32(bos | special << 1), ids, c.c_uint64(room), c.byref(count))
        count = c.c_uint64()
        call(None, 0, count)
        ids = (c.c_int32 * count.value)()
        if count.value:
            call(ids, count.value, count)
        return list(ids)

    def ends(self, vocab):
        """The tokens that end an answer."""
        info, ends = sized(TokenInfo), []
        for token in range(vocab):
            self.library.call("wi_model_token_info", self.handle, token, c.byref(info))
            if info.flags & TOKEN_END:
                ends.append(token)
        return ends

    def detokenize(self, ids):
        """ids -> bytes, control tokens by name"""
        array, length = (c.c_int32 * len(ids))(*ids), c.c_uint64()
        call = lambda text, room: self.library.call("wi_model_detokenize", self.handle, array, c.c_uint64(len(ids)), c.c_uint32(1),
                                                    text, c.c_uint64(room), c.byref(length))
        call(None, 0)
        text = c.create_string_buffer(length.value + 1)
        if length.value:
            call(text, length.value)
        return text.raw[:length.value]

    def _chat(self, name, element, messages, prompt, tools, variables, now):
        array = (ChatMessage * len(messages))()
        for at, message in enumerate(messages):
            fields = {key: value for key, value in message.items() if key != "role" and not (key == "content" and isinstance(value, str))}
            content = message["content"].encode() if isinstance(message.get("content"), str) else None
            array[at] = sized(ChatMessage, role=message["role"].encode(), content=content, content_length=len(content or b""),
                              fields_json=json.dumps(fields).encode() if fields or content is None else None)
        params = sized(ChatParams, flags=prompt, tools_json=None if tools is None else json.dumps(tools).encode(),
                       variables_json=json.dumps(variables).encode() if variables else None, now=now)
        count = c.c_uint64()
        call = lambda out, room: self.library.call(name, self.handle, array, c.c_uint64(len(messages)), c.byref(params), out,
                                                   c.c_uint64(room), c.byref(count))
        call(None, 0)
        out = (element * (count.value + 1))()
        call(out, count.value)
        return out[:count.value]

    def chat(self, messages, prompt, tools=None, variables=None, now=0):
        """messages: dicts, as transformers wants them; the text"""
        return self._chat("wi_model_chat_render", c.c_char, messages, prompt, tools, variables, now).decode()

    def chat_tokens(self, messages, prompt, tools=None, variables=None, now=0):
        return self._chat("wi_model_chat_tokens", c.c_int32, messages, prompt, tools, variables, now)

    def logits(self, tokens, vocab, policy="full", one_by_one=False, piece=None, decoded=0):
        """(tokens, vocab) f32: what follows each token; f32 KV. One prefill, or one for each piece of so many tokens;
        one_by_one: pieces of one, whose logits are asked for after each. The last `decoded` tokens by decode steps."""
        session = c.c_void_p()
        name = sized(PolicyParams, name=policy.encode())
        self.library.call("wi_session_create", self.handle, c.byref(sized(SessionParams, kv_type=2, policy=c.pointer(name))),
                          c.byref(session))
        out = np.empty((len(tokens), vocab), dtype=np.float32)
        step, read = 1 if one_by_one else piece or len(tokens), len(tokens) - decoded
        floats, count = c.POINTER(c.c_float), c.c_uint64()
        last_logits = lambda row: self.library.call("wi_session_logits", session, None, row.ctypes.data_as(floats),
                                                    c.c_uint64(vocab), c.byref(count))
        try:
            for first in range(0, read, step):
                piece = tokens[first:min(first + step, read)]
                rows = out[first:first + len(piece)]
                params = sized(PrefillParams)
                if not one_by_one:
                    params.logits, params.logits_capacity = rows.ctypes.data_as(floats), rows.size
                self.library.call("wi_session_prefill", session, (c.c_int32 * len(piece))(*piece), c.c_uint64(len(piece)),
                                  c.byref(params), None)
                if one_by_one:
                    last_logits(rows)
            for at in range(read, len(tokens)):
                self.library.call("wi_session_accept", session, c.c_int32(tokens[at]), None, c.byref(sized(Event)))
                last_logits(out[at])
        finally:
            self.library.c.wi_session_release(session)
        return out
