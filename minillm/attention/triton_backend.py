"""The backend `triton`: attention by the kernels of this project, on a GPU.

Given K and V as lists of tensors it lays them end to end and launches one kernel for all rows. A paged cache does
better: it hands its blocks to the kernels as they are (`minillm.cache.triton_paged`).
"""

from __future__ import annotations

import importlib.util

import torch


def check(device: torch.device | str) -> None:
    """Raises ValueError where no kernel can run: without Triton, or off a GPU unless kernels are interpreted."""
    if importlib.util.find_spec("triton") is None:
        raise ValueError("attention backend is 'triton', which is not installed: expected it, or 'sdpa'")
    import triton

    device = torch.device(device)
    if device.type == "cuda" and device.index not in (None, torch.cuda.current_device()):
        raise ValueError(f"attention backend is 'triton' on {device}: expected cuda:{torch.cuda.current_device()}, "
                         "where Triton launches (torch.cuda.set_device changes it)")
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise ValueError(f"attention backend is 'triton' on {device}: expected a GPU (or TRITON_INTERPRET=1, to see "
                         "the kernels run, slowly)")


def ragged_attention(q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], query_lens: list[int],
                     scale: float, window: int | None, masks: dict) -> torch.Tensor:
    """As `reference.ragged_attention`; `masks` keeps the plan of the tiles for the other layers of the step."""
    check(q.device)
    from minillm.kernels import flash_attention

    key_lens = [len(key) for key in keys]
    if window not in masks:
        masks[window] = flash_attention.plan_tiles(query_lens, key_lens, q, window=window,
                                                   value_dim=values[0].shape[-1] if values else 0)
    return flash_attention.flash_attention(q, torch.cat(keys), torch.cat(values), query_lens, key_lens, scale,
                                           window=window, plan=masks[window])
