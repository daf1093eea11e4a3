"""Caches of more than 2**31 values, of which hardly any memory is touched."""

from __future__ import annotations

import math

import numpy as np
import torch


def zeros(*shape: int, device: str) -> torch.Tensor:
    """bfloat16. On the CPU the pages of memory come when they are written to; on a GPU they are all there."""
    if device != "cpu":
        return torch.zeros(shape, dtype=torch.bfloat16, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape), np.int16)).view(torch.bfloat16).view(shape)
