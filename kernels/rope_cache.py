"""RoPE and the write to a paged cache in one pass: q and k rotated (Su et al. 2021), k and v put in their slots.

Counted in values of q, k and v (the angles are few). Apart, a rotation is four products of half a head, a difference, a
sum and a concatenation, 9 values moved for each of q and k; storing k and v reads and writes them once more, 2 each.
Fused, each of the three is read and written once. With 32 query and 8 K/V heads of 128 in bfloat16 that is
9·(32 + 8) + 2·(8 + 8) = 392 against 2·(32 + 8 + 8) = 96 heads a token: 100,352 bytes against 24,576.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from minillm.kernels.case import Case

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD_SIZE = 256


def rope_and_store_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                             slots: torch.Tensor, k_blocks: torch.Tensor, v_blocks: torch.Tensor) -> torch.Tensor:
    """q rotated, [T, H, D]; arguments as `rope_and_store`, any floating dtype. Writes into the blocks, as that does."""
    kept = slots >= 0
    for blocks, new in ((k_blocks, rotate(k, cos, sin)), (v_blocks, v)):
        blocks.view(-1, *blocks.shape[2:])[slots[kept].long()] = new[kept]  # [num_blocks * block_size, H_kv, D]
    return rotate(q, cos, sin)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (x_i, x_{i+D/2}) turned by their token's angle, in float32 or wider: x [T, H, D], cos and sin [T, D/2]."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    first, second = x.to(wide).chunk(2, dim=-1)  # [T, H, D/2] each
    cos, sin = cos.to(wide)[:, None], sin.to(wide)[:, None]  # [T, 1, D/2]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


@triton.jit
def rotate_rows(x_ptr, starts, cos_ptr, sin_ptr, tokens, columns, inside, D: tl.constexpr):
    """Both halves [ROWS, WIDTH] of the heads that start at x_ptr + starts, rotated in float32."""
    half = D // 2
    first = tl.load(x_ptr + starts[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + starts[:, None] + half + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    at = tokens[:, None] * half + columns[None, :]  # read once for every head, but from the caches after the first
    cos = tl.load(cos_ptr + at, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + at, mask=inside, other=0.0).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def store_halves(out_ptr, starts, first, second, columns, inside, D: tl.constexpr):
    """The two halves of each head, to where it starts."""
    kind = out_ptr.dtype.element_ty
    tl.store(out_ptr + starts[:, None] + columns[None, :], first.to(kind), mask=inside)
    tl.store(out_ptr + starts[:, None] + D // 2 + columns[None, :], second.to(kind), mask=inside)


@triton.jit
def rope_and_store_kernel(q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, slots_ptr, out_ptr, k_blocks_ptr, v_blocks_ptr, count,
                          heads, kv_heads, q_token, q_head, k_token, k_head, v_token, v_head, D: tl.constexpr,
                          D_V: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr, ROWS: tl.constexpr):
    """A row is one head of one of `count` tokens; each program takes ROWS of q's, or, the later ones, of k's and v's.

    q_token, q_head, …: strides in values. WIDTH and WIDTH_V: D/2 and D_V rounded up to a power of two.
    """
    columns, columns_v = tl.arange(0, WIDTH), tl.arange(0, WIDTH_V)
    q_programs = tl.cdiv(count * heads, ROWS)
    program = tl.program_id(0)
    if program < q_programs:
        rows = program * ROWS + tl.arange(0, ROWS)
        tokens, head = (rows // heads).to(tl.int64), (rows % heads).to(tl.int64)  # 64 bits: T·H·D may exceed 2**31
        inside = (rows < count * heads)[:, None] & (columns < D // 2)[None, :]
        first, second = rotate_rows(q_ptr, tokens * q_token + head * q_head, cos_ptr, sin_ptr, tokens, columns, inside,
                                    D)
        store_halves(out_ptr, rows.to(tl.int64) * D, first, second, columns, inside, D)
    else:
        rows = (program - q_programs) * ROWS + tl.arange(0, ROWS)
        tokens, head = (rows // kv_heads).to(tl.int64), (rows % kv_heads).to(tl.int64)
        slots = tl.load(slots_ptr + tokens, mask=rows < count * kv_heads, other=-1).to(tl.int64)
        stored = slots >= 0
        inside = stored[:, None] & (columns < D // 2)[None, :]
        first, second = rotate_rows(k_ptr, tokens * k_token + head * k_head, cos_ptr, sin_ptr, tokens, columns, inside,
                                    D)
        store_halves(k_blocks_ptr, (slots * kv_heads + head) * D, first, second, columns, inside, D)
        inside_v = stored[:, None] & (columns_v < D_V)[None, :]
        v = tl.load(v_ptr + (tokens * v_token + head * v_head)[:, None] + columns_v[None, :], mask=inside_v, other=0.0)
        tl.store(v_blocks_ptr + ((slots * kv_heads + head) * D_V)[:, None] + columns_v[None, :], v, mask=inside_v)


def rope_and_store(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                   slots: torch.Tensor, k_blocks: torch.Tensor, v_blocks: torch.Tensor) -> torch.Tensor:
    """Rotate q and k, write k and v into the blocks; the rotated q, a new contiguous [T, H, D].

    q [T, H, D], k [T, H_kv, D], v [T, H_kv, D_v]: views of one tensor will do, if a head's values are neighbours.
    cos, sin [T, D/2] of q's dtype or float32. k_blocks [num_blocks, block_size, H_kv, D], v_blocks likewise with D_v,
    of q's dtype (float32, float16, bfloat16). slots [T] int64 or int32: block * block_size + offset, each at most once;
    a negative one is not written (padding). They are not read back, so that a launch may stand in a CUDA graph: whoever
    makes them answers for their being below num_blocks * block_size.
    Raises ValueError naming the argument for other shapes, head counts or sizes, dtypes, devices or strides.
    """
    check_shapes(q, k, v, cos, sin, slots, k_blocks, v_blocks)
    check_memory(q, k, v, cos, sin, slots, k_blocks, v_blocks)
    tokens, heads, size = q.shape
    kv_heads, size_v = v.shape[1:]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if tokens:
        shape = configuration(size, size_v)
        programs = triton.cdiv(tokens * heads, shape["ROWS"]) + triton.cdiv(tokens * kv_heads, shape["ROWS"])
        rope_and_store_kernel[(programs,)](
            q, k, v, cos, sin, slots, out, k_blocks, v_blocks, tokens, heads, kv_heads, *q.stride()[:2],
            *k.stride()[:2], *v.stride()[:2], **shape, num_warps=4)
    return out


def configuration(size: int, size_v: int) -> dict[str, int]:
    """The kernel's constants: rows of q for 16 values a thread of 4 warps, which in 16 bits are loads of 16 bytes."""
    width = triton.next_power_of_2(size // 2)
    return {"D": size, "D_V": size_v, "WIDTH": width, "WIDTH_V": triton.next_power_of_2(size_v),
            "ROWS": max(1, 1024 // width)}


def check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                 slots: torch.Tensor, k_blocks: torch.Tensor, v_blocks: torch.Tensor) -> None:
    """Raises ValueError naming the argument whose shape does not fit the others."""
    if q.dim() != 3 or not 2 <= q.shape[2] <= MAX_HEAD_SIZE or q.shape[2] % 2:
        raise ValueError(f"q is {list(q.shape)}: expected [T, H, D] with an even D of 2 to {MAX_HEAD_SIZE}")
    if v.dim() != 3 or not 1 <= v.shape[2] <= MAX_HEAD_SIZE:
        raise ValueError(f"v is {list(v.shape)}: expected [T, H_kv, D_v] with a D_v of 1 to {MAX_HEAD_SIZE}")
    tokens, heads, size = q.shape
    kv_heads, size_v = v.shape[1:]
    blocks = [*k_blocks.shape[:2], kv_heads]
    for name, tensor, expected in (
            ("v", v, [tokens, kv_heads, size_v]), ("k", k, [tokens, kv_heads, size]), ("cos", cos, [tokens, size // 2]),
            ("sin", sin, [tokens, size // 2]), ("slots", slots, [tokens]), ("k_blocks", k_blocks, [*blocks, size]),
            ("v_blocks", v_blocks, [*blocks, size_v])):
        if list(tensor.shape) != expected:
            raise ValueError(f"{name} is {list(tensor.shape)}: expected {expected}")
    if kv_heads == 0 or heads == 0 or heads % kv_heads:
        raise ValueError(f"q has {heads} heads and k {kv_heads}: expected a multiple of k's")


def check_memory(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                 slots: torch.Tensor, k_blocks: torch.Tensor, v_blocks: torch.Tensor) -> None:
    """Raises ValueError naming the argument of an unsupported dtype, another device or scattered memory."""
    if q.dtype not in DTYPES:
        raise ValueError(f"q is {q.dtype}: expected float32, float16 or bfloat16")
    angles, integers = {q.dtype, torch.float32}, {torch.int64, torch.int32}
    for name, tensor, dtypes, spread in (
            ("q", q, {q.dtype}, True), ("k", k, {q.dtype}, True), ("v", v, {q.dtype}, True),
            ("cos", cos, angles, False), ("sin", sin, angles, False), ("slots", slots, integers, False),
            ("k_blocks", k_blocks, {q.dtype}, False), ("v_blocks", v_blocks, {q.dtype}, False)):
        if tensor.dtype not in dtypes:
            raise ValueError(f"{name} is {tensor.dtype}: expected {' or '.join(sorted(map(str, dtypes)))}")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}: expected {q.device}, where q is")
        if spread and tensor.shape[2] > 1 and tensor.stride(2) != 1:
            raise ValueError(f"{name} has strides {tensor.stride()}: expected 1 for the last, within a head")
        if not spread and not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}: expected it contiguous")


def cases() -> list[Case]:
    """Heads of 64 (SmolLM2), 80, 96, 128 (Llama) and 256, as parts of one tensor of q, k and v."""
    pointers = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "cos_ptr", "sin_ptr"), "*bf16")
    pointers |= {"slots_ptr": "*i64"} | dict.fromkeys(("out_ptr", "k_blocks_ptr", "v_blocks_ptr"), "*bf16")
    integers = dict.fromkeys(("count", "heads", "kv_heads"), "i32")
    strides = dict.fromkeys(("q_token", "q_head", "k_token", "k_head", "v_token", "v_head"), "i32:16")
    return [Case(f"rope_cache d{size} bf16", rope_and_store_kernel, {**pointers, **integers, **strides},
                 configuration(size, size), 4, 1, False) for size in (64, 80, 96, 128, 256)]
