"""One kernel in one configuration, as it is compiled without a GPU; each module's `cases()` lists its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """What a launch would pass, without the tensors.

    name: such as "flash d128 causal bf16". kernel: the function under @triton.jit.
    signature: each argument that is no constexpr, in the kernel's order, and its Triton type: "*bf16", "*i32", "i32",
    "fp32". Pointers count as aligned to 16 bytes, as torch allocates them; "i32:16" says that an integer, such as a
    stride, is a multiple of 16, which a launch finds out by itself: loads are vectorised only where both are known.
    tensor_core: the compiled code must hold a tensor-core instruction. warpgroup: its products have at least 64 rows
    and 4 warps, so on sm_90 that must be wgmma and on sm_100 tcgen05.
    chips: the targets it is meant for; None is all of them.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, object]
    num_warps: int
    num_stages: int
    tensor_core: bool
    chips: tuple[str, ...] | None = None
    warpgroup: bool = False
