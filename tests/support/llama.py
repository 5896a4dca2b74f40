"""llama.cpp through llama-cpp-python's low-level calls, quiet: open, quantise, tokenise, logits."""
import ctypes
import os

import llama_cpp
import numpy as np

VERSION = llama_cpp.__version__
_quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
llama_cpp.llama_backend_init()
if not os.environ.get("LLAMA_LOG"):
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))


def quantise(source, target, ftype, threads=1):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = ftype, threads
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    if status:
        raise RuntimeError(f"llama_model_quantize to type {ftype} returned {status}")


class Model:
    def __init__(self, path, vocab_only=False, copied=False, repack=False):
        """copied: the weights are read into memory instead of mapped. repack: into what its kernels for this processor
        like best; with AMX, 0.3.36 crashes on some types then, so its caller tries that in a process of its own"""
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = vocab_only
        if copied and hasattr(params, "load_mode"):
            params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        elif copied:  # older versions have a flag
            params.use_mmap = False
        if hasattr(params, "use_extra_bufts"):
            params.use_extra_bufts = repack
        self.handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp does not load {path} (LLAMA_LOG=1 lets it say why)")
        self.vocab = llama_cpp.llama_model_get_vocab(self.handle)

    def __del__(self):
        if getattr(self, "handle", None):
            llama_cpp.llama_model_free(self.handle)

    def tokenize(self, text, bos=False, special=False):
        """bytes -> ids; bos: as the file wants it"""
        room = len(text) + 16
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self.vocab, text, len(text), ids, room, bos, special)
        if count < 0:
            raise RuntimeError(f"llama_tokenize returned {count}")
        return list(ids[:count])

    def context(self, tokens, batch=512, threads=None, flash=False, kv_type=None):
        """A context for so many tokens; None if llama.cpp refuses. flash: flash attention on or off, never auto. kv_type: of
        ggml's, else f16 as is llama.cpp's default"""
        params = llama_cpp.llama_context_default_params()
        if kv_type is not None:
            params.type_k = params.type_v = kv_type
        params.n_ctx = tokens
        params.n_batch = params.n_ubatch = batch
        if threads:
            params.n_threads = params.n_threads_batch = threads
        if hasattr(params, "flash_attn_type"):
            params.flash_attn_type = int(flash)
        else:
            params.flash_attn = flash
        return llama_cpp.llama_init_from_model(self.handle, params)

    def logits(self, tokens, vocab, kv_type=None):
        """(tokens, vocab) f32: what follows each token"""
        ctx = self.context(len(tokens) + 8, kv_type=kv_type)
        out = np.empty((len(tokens), vocab), dtype=np.float32)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        status = llama_cpp.llama_decode(ctx, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        for i in range(len(tokens)):
            out[i] = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, i), (vocab,))
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(ctx)
        return out
