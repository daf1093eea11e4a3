"""Fixtures that many tests share."""

from __future__ import annotations

import os

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():  # kernels are interpreted then, which must be chosen before they are imported
    os.environ["TRITON_INTERPRET"] = "1"

# the same examples every time, so that a change is the only thing that can turn a test red
hypothesis.settings.register_profile("seeded", derandomize=True, deadline=None)
hypothesis.settings.load_profile("seeded")


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct as `zoo.load` gives it: float32 on the CPU. Fails, not skips, when it was not fetched."""
    from minillm.model import zoo

    try:
        return zoo.load("smollm2", dtype="float32", device="cpu")
    except ValueError as error:
        pytest.fail(f"these tests need the model: run minillm fetch smollm2 ({error})")
