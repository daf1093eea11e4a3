"""The ground floor: what a model costs, what a machine can do, and how long things took. Imports nothing above it."""

from __future__ import annotations

from minillm.measure.hardware import best_device

__all__ = ["best_device"]
