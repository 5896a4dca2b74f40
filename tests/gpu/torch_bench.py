#!/usr/bin/env python3
"""PyTorch's attention of a prompt's chunk and its products, where PyTorch is installed: what kernel_bench's lines of
the same shapes are held against. One JSON object a line."""
import datetime
import json
import sys
import time

try:
    import torch
    from torch.nn.attention.bias import causal_lower_right
except ImportError as error:
    print(f"skipped: there is no PyTorch ({error})")
    sys.exit(77)
if not torch.cuda.is_available():
    print("skipped: PyTorch finds no device")
    sys.exit(77)

HEADS, GROUP, DIM, HIDDEN, FFN = 8, 4, 128, 4096, 14336


def measure(kernel, shape, operations, body):
    line = {"kernel": kernel, "shape": shape}
    try:
        for _ in range(3):
            body()
        torch.cuda.synchronize()
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            for _ in range(5):
                body()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / 5)
        seconds = min(times)
        line |= {"us": round(seconds * 1e6, 2), "tflops": round(operations / seconds * 1e-12, 2)}
    except Exception as error:  # what one shape is refused with says nothing about the next
        line["refused"] = str(error).splitlines()[0]
    line["torch"] = torch.__version__
    line["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(json.dumps(line, separators=(",", ":")), flush=True)


def attention(rows, past, dtype, name):
    def random(heads, tokens):
        return torch.randn(1, heads, tokens, DIM, device="cuda", dtype=dtype)

    queries, keys, values = random(HEADS * GROUP, rows), random(HEADS, past + rows), random(HEADS, past + rows)
    mask = causal_lower_right(rows, past + rows)
    pairs = rows * (past + (rows + 1) / 2)
    measure("attention (PyTorch)", f"{rows} rows after {past}, {HEADS} heads of {GROUP}, {name}",
            4 * DIM * HEADS * GROUP * pairs,
            lambda: torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True))


for past in (0, 7168, 31744):
    attention(1024, past, torch.float16, "f16")
attention(1024, 31744, torch.bfloat16, "bf16")
for outputs, inputs in ((HIDDEN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)):
    for rows in (64, 1024):
        weights = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)
        left = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
        measure("matmul (PyTorch)", f"{outputs} x {inputs}, bf16, {rows} rows", 2 * rows * outputs * inputs,
                lambda: left @ weights.T)
