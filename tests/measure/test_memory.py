"""Peak bytes on computations whose peak is known."""

from __future__ import annotations

import torch

from minillm.measure.memory import peak_bytes


def test_the_peak_is_what_is_alive_at_once() -> None:
    def chain() -> torch.Tensor:
        x = torch.zeros(1000)  # 4000 bytes
        for _ in range(5):
            x = x + 1  # the old one lives until the new one is there
        return x

    assert peak_bytes(chain) == 8000
    assert peak_bytes(lambda: [torch.zeros(1000) for _ in range(5)]) == 20000


def test_views_results_in_place_and_what_was_there_take_no_memory() -> None:
    given = torch.zeros(1000)
    assert peak_bytes(lambda: given.view(10, 100)[2:5].t()) == 0
    assert peak_bytes(lambda: given.add_(1)) == 0
    assert peak_bytes(lambda: torch.ones(1000).view(10, 100)[3:].mul_(2)) == 4000


def test_a_dtype_counts_by_its_width() -> None:
    assert peak_bytes(lambda: torch.zeros(1000, dtype=torch.bfloat16)) == 2000
    assert peak_bytes(lambda: torch.zeros(1000, dtype=torch.bool)) == 1000
