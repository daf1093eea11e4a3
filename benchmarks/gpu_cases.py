"""What benchmarks/gpu_kernels.py times: each case is calls that compute the same, and the least that one takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from minillm.kernels import flash_attention, paged_decode, prefill_plan, rms_norm, rope_cache, swiglu
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from minillm.model import layers

COPIED_BYTES = 2**30
DTYPE = torch.bfloat16
Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Work:
    """What a case times: calls that compute the same, and what one of them takes at least."""

    calls: Calls
    flops: int = 0
    bytes: int = 0


def prefill(device: str, length: int, causal: bool, tokens: int = 16384, heads: int = 16, dim: int = 128) -> Work:
    """Whole prompts of `length`, `tokens` in all: the shapes of the FlashAttention papers, 2,048 values a token.

    Ours is timed in every configuration of this chip, each under its own name; "ours" is the default.
    """
    rows = tokens // length
    q, k, v = torch.randn(3, tokens, heads, dim, device=device, dtype=DTYPE).unbind()
    batched = [x.view(rows, length, heads, dim).transpose(1, 2) for x in (q, k, v)]  # [B, H, S, D]
    lens = [length] * rows
    calls: Calls = {}
    for config in prefill_plan.configurations(paged_decode.chip_of(q.device), dim, q.element_size()):
        plan = prefill_plan.plan_tiles(lens, lens, q, causal=causal, block_m=config.block_m)
        calls[f"ours {tuple(config)}" if calls else "ours"] = partial(
            flash_attention.flash_attention, q, k, v, lens, lens, dim**-0.5, causal=causal, plan=plan,
            configuration=config)

    def sdpa() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(*batched, is_causal=causal)
        return out.transpose(1, 2).reshape(tokens, heads, dim)  # a view where its memory is [B, S, H, D]

    # two products of S x S x D for each head; a causal mask needs half of them
    flops = 4 * rows * heads * length**2 * dim // (2 if causal else 1)
    return Work({**calls, "sdpa": sdpa}, flops=flops)


def decode(device: str, rows: int, context: int, kv: str = "bf16", splits: tuple[int, ...] = (), heads: int = 32,
           kv_heads: int = 8, dim: int = 128, block: int = 16) -> Work:
    """One query a row, the blocks in random order. kv: bf16, int8 or fp8 (bytes).

    "ours" chooses splits and configuration; then come the numbers of `splits`, or, without any, all configurations.
    """
    q = torch.randn(rows, heads, dim, device=device, dtype=DTYPE)
    k, v, scales = paged_kv(device, (rows * math.ceil(context / block), block, kv_heads, dim), kv)
    tables = torch.randperm(len(k), device=device).int().view(rows, -1)
    lens = torch.full((rows,), context, device=device, dtype=torch.int32)
    ours = partial(paged_decode.paged_decode, q, k, v, tables, lens, dim**-0.5, k_scales=scales, v_scales=scales)
    calls: Calls = {"ours": ours}
    if splits:
        calls |= {f"{count} splits": partial(ours, splits=count) for count in splits}
    else:
        others = paged_decode.configurations(paged_decode.chip_of(q.device), dim, dim, k.element_size(),
                                             heads // kv_heads)[1:]
        calls |= {f"ours {tuple(config)}": partial(ours, configuration=config) for config in others}
    return Work(calls, bytes=2 * rows * context * kv_heads * dim * k.element_size())


def paged_kv(device: str, shape: tuple[int, ...], kv: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Blocks of random K and V, and scales for both where they are codes."""
    if kv == "bf16":
        k, v = (torch.randn(shape, device=device, dtype=DTYPE) for _ in range(2))
        return k, v, None
    scales = torch.full((shape[0], 1, shape[2], 1), 0.02, device=device)
    if kv == "int8":
        k, v = (torch.randint(-127, 128, shape, device=device, dtype=torch.int8) for _ in range(2))
    else:
        k, v = (torch.randn(shape, device=device).to(torch.float8_e4m3fn).view(torch.uint8) for _ in range(2))
    return k, v, scales


def norm(device: str, tokens: int = 16384, width: int = 4096) -> Work:
    x, residual = torch.randn(2, tokens, width, device=device, dtype=DTYPE).unbind()
    weight = torch.ones(width, device=device, dtype=DTYPE)
    return Work({"ours": lambda: rms_norm.add_rms_norm(x, residual, weight),
                 "torch": lambda: functional.rms_norm(x + residual, (width,), weight, 1e-5)}, bytes=4 * x.nbytes)


def gated(device: str, tokens: int = 16384, width: int = 14336) -> Work:
    gate, up = torch.randn(tokens, 2 * width, device=device, dtype=DTYPE).chunk(2, dim=1)  # halves of one product
    return Work({"ours": lambda: swiglu.swiglu(gate, up), "torch": lambda: functional.silu(gate) * up},
                bytes=3 * 2 * tokens * width)


def rope(device: str, tokens: int = 16384, heads: int = 32, kv_heads: int = 8, dim: int = 128,
         block: int = 16) -> Work:
    rows = torch.randn(tokens, heads + 2 * kv_heads, dim, device=device, dtype=DTYPE)
    q, k, v = rows.split([heads, kv_heads, kv_heads], dim=1)
    cos, sin = torch.rand(2, tokens, dim // 2, device=device).unbind()
    slots = torch.randperm(tokens, device=device)
    caches = [torch.zeros(math.ceil(tokens / block), block, kv_heads, dim, device=device, dtype=DTYPE)
              for _ in range(2)]

    def unfused() -> torch.Tensor:
        angles = cos.to(DTYPE), sin.to(DTYPE)
        for cache, new in zip(caches, (layers.apply_rope(k, *angles), v)):
            cache.flatten(0, 1)[slots] = new
        return layers.apply_rope(q, *angles)

    return Work({"ours": lambda: rope_cache.rope_and_store(q, k, v, cos, sin, slots, *caches), "torch": unfused},
                bytes=2 * rows.nbytes + 2 * cos.nbytes + slots.nbytes)


def copy(device: str, count: int = COPIED_BYTES) -> Work:
    source, target = (torch.ones(count, device=device, dtype=torch.uint8) for _ in range(2))
    return Work({"ours": lambda: target.copy_(source)}, bytes=2 * count)


SPLITS = (1, 2, 4, 8, 16, 32, 64)


def prefills(*lengths: int) -> dict[str, Callable[[str], Work]]:
    return {f"prefill {length} {'causal' if causal else 'full'}": partial(prefill, length=length, causal=causal)
            for length in lengths for causal in (False, True)}


# the most important first; `copy` is what the others' bandwidth is compared with
CASES: dict[str, Callable[[str], Work]] = {
    "copy": copy,
    **prefills(8192, 4096, 16384),
    "decode 32 x 4096 bf16": partial(decode, rows=32, context=4096),
    "rms_norm": norm,
    "swiglu": gated,
    "rope_and_store": rope,
    "decode 1 x 4096 bf16, splits": partial(decode, rows=1, context=4096, splits=SPLITS),
    "decode 32 x 4096 int8": partial(decode, rows=32, context=4096, kv="int8"),
    "decode 32 x 4096 fp8": partial(decode, rows=32, context=4096, kv="fp8"),
    "decode 1 x 32768 bf16, splits": partial(decode, rows=1, context=32768, splits=SPLITS),
    **prefills(2048, 1024),
    "prefill 8192 causal d64": partial(prefill, length=8192, causal=True, heads=32, dim=64),
    "prefill 8192 causal d256": partial(prefill, length=8192, causal=True, heads=8, dim=256),
}
