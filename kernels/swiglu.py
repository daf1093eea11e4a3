"""SwiGLU in one pass: silu(gate) · up, the middle of the gated MLP (Shazeer 2020).

Apart, silu reads T·N values and writes as many, and the product reads both and writes: 5·T·N values moved, 10·T·N bytes
in bfloat16. Fused, gate and up are read and the product is written: 3·T·N values, 6·T·N bytes. Arithmetic is
negligible, so bytes are the cost.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from minillm.kernels.case import Case

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up, in float32 or wider and rounded once; both of one shape and dtype."""
    wide = gate if gate.dtype == torch.float64 else gate.float()
    return (wide * torch.sigmoid(wide) * up.to(wide.dtype)).to(gate.dtype)


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, out_ptr, width, gate_stride, up_stride, BLOCK: tl.constexpr):
    """Each program takes BLOCK neighbouring values of one row; programs one after another walk along memory."""
    chunks = tl.cdiv(width, BLOCK)
    row = (tl.program_id(0) // chunks).to(tl.int64)  # 64 bits: T·N may exceed 2**31
    columns = tl.program_id(0) % chunks * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * width + columns, out.to(out_ptr.dtype.element_ty), mask=inside)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The kernel's launcher; see `swiglu_reference` for what it computes.

    gate, up [T, N] of one dtype (float32, float16, bfloat16) on one device. Each row lies in one piece, but rows may
    stand apart, so the two halves of one [T, 2N] tensor will do. Returns a new contiguous [T, N] tensor.
    Raises ValueError for other shapes, dtypes, devices or strides.
    """
    if gate.dim() != 2 or up.shape != gate.shape:
        raise ValueError(f"gate is {list(gate.shape)} and up {list(up.shape)}: expected both [T, N]")
    if gate.dtype != up.dtype or gate.dtype not in DTYPES:
        raise ValueError(f"gate is {gate.dtype} and up {up.dtype}: expected one of float32, float16, bfloat16 for both")
    if gate.device != up.device:
        raise ValueError(f"gate is on {gate.device} and up on {up.device}: expected one device")
    tokens, width = gate.shape
    for name, tensor in (("gate", gate), ("up", up)):
        if width > 1 and tensor.stride(1) != 1:
            raise ValueError(f"{name} has strides {tensor.stride()}: expected neighbours in a row to be neighbours in "
                             "memory")
    out = torch.empty(tokens, width, dtype=gate.dtype, device=gate.device)
    if out.numel():
        block, warps = configuration(width)
        swiglu_kernel[(tokens * triton.cdiv(width, block),)](gate, up, out, width, gate.stride(0), up.stride(0),
                                                             BLOCK=block, num_warps=warps)
    return out


def configuration(width: int) -> tuple[int, int]:
    """(BLOCK, warps): 16 values a thread, which in 16 bits are two loads of 16 bytes from each input, all in flight.

    Bytes in flight are what reaches a memory's bandwidth, and they need no more than this on any chip: nothing to tune.
    """
    block = min(2048, max(32, triton.next_power_of_2(width)))
    return block, max(1, block // 512)


def cases() -> list[Case]:
    """The inner sizes of SmolLM2-135M (1,536) and of an 8B model (14,336)."""
    made = []
    for width in (1536, 14336):
        block, warps = configuration(width)
        signature = {"gate_ptr": "*bf16", "up_ptr": "*bf16", "out_ptr": "*bf16", "width": "i32:16",
                     "gate_stride": "i32:16", "up_stride": "i32:16"}
        made.append(Case(f"swiglu {width} bf16", swiglu_kernel, signature, {"BLOCK": block}, warps, 1, False))
    return made
