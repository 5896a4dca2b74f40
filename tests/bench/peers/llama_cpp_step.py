"""One measurement of llama.cpp (through llama-cpp-python): prints one JSON object.

    llama_cpp_step.py MODEL CONTEXT STEPS THREADS FLASH(0|1)
"""
import ctypes
import json
import statistics
import sys
import time

import llama_cpp


def main():
    path, context, steps, threads, flash = sys.argv[1], *map(int, sys.argv[2:6])
    llama_cpp.llama_backend_init()
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    model_params = llama_cpp.llama_model_default_params()
    if hasattr(model_params, "use_extra_bufts"):
        model_params.use_extra_bufts = "amx" not in open("/proc/cpuinfo").read()  # its AMX repacking crashes on tied q8_0
    model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = context + steps + 16
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 1 if flash else 0
    else:
        params.flash_attn = bool(flash)
    ctx = model and llama_cpp.llama_init_from_model(model, params)
    if not ctx:
        raise SystemExit(f"llama.cpp does not load {path}")

    def decode(ids):
        array = (llama_cpp.llama_token * len(ids))(*ids)
        status = llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(array, len(ids)))
        if status:
            raise SystemExit(f"llama_decode returned {status}")
        llama_cpp.llama_get_logits(ctx)[0]  # waits for the result

    prompt = [(i * 7919 + 13) % 32000 for i in range(context)]
    decode([5])
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
    start = time.perf_counter()
    for first in range(0, context, 512):
        decode(prompt[first:first + 512])
    prefill_s = time.perf_counter() - start
    times = []
    for step in range(steps + 2):
        start = time.perf_counter()
        decode([(step * 31 + 7) % 32000])
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"runtime": "llama.cpp", "version": llama_cpp.__version__, "context": context, "flash": flash,
                      "prefill_tokens_per_second": context / prefill_s, "ms_per_token_p50": statistics.median(times[2:])}))


main()
