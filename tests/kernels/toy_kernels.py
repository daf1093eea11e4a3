"""Small kernels for test_aot.py, which compiles them in a process without the interpreter: this file, run by itself.

Arguments: NAME:CHIP pairs. Prints a JSON list: each one's report, or its error as text.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace

import triton
import triton.language as tl
from minillm.kernels.aot import compile_case
from minillm.kernels.case import Case


@triton.jit
def attend(q_ptr, k_ptr, v_ptr, out_ptr, length, stride, ROWS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr):
    """Attention without the online softmax: two products in a loop, which is what decides the instruction."""
    columns = tl.arange(0, D)
    q = tl.load(q_ptr + tl.arange(0, ROWS)[:, None] * stride + columns[None, :])
    total = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, length, KEYS):
        at = (start + tl.arange(0, KEYS))[:, None] * stride + columns[None, :]
        weights = tl.exp2(tl.dot(q, tl.load(k_ptr + at).T))
        total = tl.dot(weights.to(q.dtype), tl.load(v_ptr + at), total)
    tl.store(out_ptr + tl.arange(0, ROWS)[:, None] * stride + columns[None, :], total.to(q.dtype))


@triton.jit
def mismatched(x_ptr, SIZE: tl.constexpr):
    """Adds blocks of sizes that do not broadcast: no compiler takes it."""
    tl.store(x_ptr + tl.arange(0, SIZE), tl.arange(0, SIZE) + tl.arange(0, 2 * SIZE))


@triton.jit
def double(x_ptr, SIZE: tl.constexpr):
    """No product at all."""
    at = x_ptr + tl.arange(0, SIZE)
    tl.store(at, tl.load(at) * 2)


ARGUMENTS = {**{name: "*bf16" for name in ("q_ptr", "k_ptr", "v_ptr", "out_ptr")}, "length": "i32", "stride": "i32:16"}
PREFILL = Case("prefill", attend, ARGUMENTS, {"ROWS": 128, "KEYS": 64, "D": 128}, 8, 2, True, warpgroup=True)
CASES = {
    "prefill": PREFILL,
    "decode": replace(PREFILL, name="decode", constexprs={"ROWS": 16, "KEYS": 64, "D": 64}, num_warps=4,
                      warpgroup=False),
    "narrow": replace(PREFILL, name="narrow", constexprs={"ROWS": 16, "KEYS": 64, "D": 64}, num_warps=4),
    "greedy": replace(PREFILL, name="greedy", constexprs={"ROWS": 64, "KEYS": 128, "D": 128}, num_warps=1),
    # three tiles of K and three of V, 64 x 128 values of 2 bytes: 96 KiB, and what else is kept
    "deep": replace(PREFILL, name="deep", constexprs={"ROWS": 64, "KEYS": 64, "D": 128}, num_warps=4, num_stages=4),
    "plain": Case("plain", double, {"x_ptr": "*bf16"}, {"SIZE": 1024}, 4, 1, True),
    "mismatched": Case("mismatched", mismatched, {"x_ptr": "*i32"}, {"SIZE": 16}, 4, 2, False),
    "unnamed": replace(PREFILL, name="unnamed", signature={"q_ptr": "*bf16"}),
}


def outcome(name: str, chip: str) -> dict | str:
    try:
        report = compile_case(CASES[name], chip)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return {**asdict(report), "problems": report.problems(), "limit": report.occupancy().limit}


if __name__ == "__main__":
    print(json.dumps([outcome(*pair.split(":")) for pair in sys.argv[1:]]))
