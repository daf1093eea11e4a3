"""What Triton kernels load and store, element by element, seen under Triton's interpreter.

While `record()` lasts, a kernel is handed copies of its tensors, each with room around it, and every address that it
loads from or stores to is noted. An access outside of a tensor does no harm, but is counted. What a GPU would leave to
chance is NaN here (1,000,003 in integers), the same every time: what is loaded outside, what is masked off without
`other`, and what torch.empty gives. So a result that is right by luck on one machine is wrong here.

Nor is `if` right by luck: the interpreter takes every block of more than one element for true, where a compiled kernel
is refused. `no_truth_of_blocks` refuses it here.

Triton has no such thing of its own. This takes the place of four of its interpreter's functions, whose arguments are
the same in Triton 3.6 to 3.9; tests/course/test_tracing.py guards that.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from minillm.course.triton_errors import BLOCK_TRUTH

ROOM = 1024  # elements before and after each tensor
ALL_INSIDE = "all inside"
CHANCE = 1_000_003  # small enough to be multiplied by a stride within 32 bits, and no number of a block


@dataclass
class Seen:
    """A tensor that a kernel was given, and how often each place of the memory around it was loaded and stored.

    memory: 1-D, the tensor's copy in the middle. places: where in it each element lies, in the tensor's shape.
    """

    name: str
    tensor: torch.Tensor
    memory: torch.Tensor
    copy: torch.Tensor
    places: np.ndarray
    loads: np.ndarray
    stores: np.ndarray

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Seen:
        reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())) + 1 if tensor.numel() else 0
        memory = torch.zeros(reach + 2 * ROOM, dtype=tensor.dtype)
        copy = memory.as_strided(tensor.shape, tensor.stride(), ROOM)
        copy.copy_(tensor)
        places = torch.arange(len(memory)).as_strided(tensor.shape, tensor.stride(), ROOM).numpy()
        return cls(name, tensor, memory, copy, places, *np.zeros((2, len(memory)), dtype=int))

    @property
    def inside(self) -> np.ndarray:
        """Which places of the memory are the tensor's own: between rows that lie apart there are others."""
        own = np.zeros(len(self.memory), dtype=bool)
        own[self.places] = True
        return own

    def note(self, kind: str, addresses: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count the active addresses that lie in this memory. Returns which do, and which are the tensor's own."""
        places = (addresses.astype(np.int64) - self.memory.data_ptr()) // self.memory.element_size()
        near = active & (places >= 0) & (places < len(self.memory))
        np.add.at(getattr(self, kind), places[near], 1)
        return near, near & self.inside[np.where(near, places, 0)]

    def strays(self, kind: str) -> int:
        """Loads or stores that are near the tensor, but none of its elements."""
        return int(getattr(self, kind)[~self.inside].sum())


@dataclass
class Trace:
    """What was seen: launches, tensors by the kernel's names for them, loads and stores that are near none of them."""

    launches: int = 0
    seen: dict[str, Seen] = field(default_factory=dict)
    far: dict[str, int] = field(default_factory=lambda: {"loads": 0, "stores": 0})

    def enter(self, name: str, tensor: torch.Tensor) -> Seen:
        """Take in a tensor that a kernel gets. The same one under two names is seen as one."""
        name = name.removesuffix("_ptr")
        same = next((s for s in self.seen.values() if s.tensor is tensor), None)
        if same is None:
            same = Seen.of(name, tensor)
            before = self.seen.get(name)
            if before and len(before.memory) == len(same.memory):  # of an earlier launch: accesses are added up
                same.loads, same.stores = before.loads, before.stores
            self.seen[name] = same
        same.copy.copy_(tensor)
        return same

    def note(self, kind: str, addresses: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Count the active addresses. Returns which of them are elements of tensors."""
        there, far = np.zeros(addresses.shape, dtype=bool), active
        for seen in self.seen.values():
            near, own = seen.note(kind, addresses, active)
            there, far = there | own, far & ~near
        self.far[kind] += int(far.sum())
        return there

    def told(self) -> str:
        """Whether every access was inside, and if not, how many were outside of what."""
        if not self.launches:
            return "no kernel was launched"
        strays = {seen.name: {kind: seen.strays(kind) for kind in self.far} for seen in self.seen.values()}
        outside = []
        for name, counts in {**strays, "everything": self.far}.items():
            parts = [f"{count} {kind if count > 1 else kind[:-1]}" for kind, count in counts.items() if count]
            outside += [f"{' and '.join(parts)} outside {name}"] if parts else []
        return ", ".join(outside) or ALL_INSIDE


@contextlib.contextmanager
def record() -> Iterator[Trace]:
    """Note what kernels launched while this lasts load and store. RuntimeError where they are not interpreted."""
    import triton
    from triton.runtime import interpreter

    if not triton.knobs.runtime.interpret:
        raise RuntimeError("kernels are compiled in this process: expected TRITON_INTERPRET=1 before they are imported")
    trace, builder = Trace(), interpreter.InterpreterBuilder
    with (_instead(interpreter.InterpretedFunction, "run", _launching, trace),
          _instead(builder, "create_masked_load", _loading, trace),
          _instead(builder, "create_masked_store", _storing, trace), no_truth_of_blocks(), NothingByChance(),
          np.errstate(all="ignore")):
        yield trace


@contextlib.contextmanager
def no_truth_of_blocks() -> Iterator[None]:
    """While this lasts, no block in an interpreted kernel is true or false: TypeError, as when it is compiled."""
    from triton.runtime import interpreter

    with _instead(interpreter, "_patch_lang_tensor", _without_truth):
        yield


@contextlib.contextmanager
def _instead(holder: Any, name: str, made: Callable[..., Callable], *more: Any) -> Iterator[None]:
    """While this lasts, a function or method is what `made` makes of it."""
    original = getattr(holder, name)
    setattr(holder, name, made(original, *more))
    try:
        yield
    finally:
        setattr(holder, name, original)


def _launching(original: Callable, trace: Trace) -> Callable:
    """InterpretedFunction.run, on copies of the tensors; what was stored is given back to them."""
    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        trace.launches += 1
        given: list[Seen] = []

        def copied(name: str, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            given.append(trace.enter(name, value))
            return given[-1].copy

        names = [*kernel.arg_names, *("" for _ in args)]
        try:
            return original(kernel, *map(copied, names, args), grid=grid, warmup=warmup,
                            **{name: copied(name, value) for name, value in kwargs.items()})
        finally:
            for seen in given:
                if seen.stores.any():
                    seen.tensor.copy_(seen.copy)

    return run


def _loading(original: Callable, trace: Trace) -> Callable:
    """InterpreterBuilder.create_masked_load, of elements only; the rest is left to chance."""
    def load(builder: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        active = np.broadcast_to(mask.data, pointers.data.shape)
        there = trace.note("loads", pointers.data, active)
        loaded = original(builder, pointers, type(mask)(active & there, mask.dtype), other, *rest)
        # of one value: Triton hands no `other` on if it is 0
        given = other is not None or pointers.data.size == 1
        by_chance = active & ~there if given else ~there
        loaded.data = np.where(by_chance, _chance(loaded.data, loaded.dtype), loaded.data).astype(loaded.data.dtype)
        return loaded

    return load


def _storing(original: Callable, trace: Trace) -> Callable:
    """InterpreterBuilder.create_masked_store, to elements only."""
    def store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        active = np.broadcast_to(mask.data, pointers.data.shape)
        there = trace.note("stores", pointers.data, active)
        return original(builder, pointers, value, type(mask)(active & there, mask.dtype), *rest)

    return store


def _without_truth(original: Callable) -> Callable:
    """The interpreter's _patch_lang_tensor, which gives blocks their methods, and takes them back later."""
    def patch(tensor: type, *scope: Any) -> None:
        original(tensor, *scope)
        lenient = tensor.__bool__

        def truth(block: Any) -> bool:
            # Triton's own code asks whether a block is there by its truth
            ours = sys._getframe(1).f_globals.get("__name__", "").startswith("triton.")
            if block.type.is_block() and not ours:
                raise TypeError(BLOCK_TRUTH)
            return lenient(block)

        tensor.__bool__ = truth

    return patch


def _chance(values: np.ndarray, dtype: Any) -> Any:
    """What stands for a value that is anything at all. dtype: Triton's; its bfloat16 is uint16 in the interpreter."""
    if dtype.is_bf16():
        return 0x7FC0  # NaN
    return {"f": np.nan, "b": True}.get(values.dtype.kind) or CHANCE % np.iinfo(values.dtype).max


class NothingByChance(TorchFunctionMode):
    """Memory that torch leaves unwritten holds NaN: else it might hold the right answer of the call before."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function in (torch.empty, torch.empty_like, torch.Tensor.new_empty) and made.dtype != torch.bool:
            made.fill_(float("nan") if made.is_floating_point() else CHANCE % torch.iinfo(made.dtype).max)
        return made
