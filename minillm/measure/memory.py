"""How much memory a computation holds at its highest point, counted from the tensors that it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Held(TorchDispatchMode):
    """Sees every operation's results; `peak` is the most bytes of them that were alive at once, views counted once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {StorageWeakRef(t.untyped_storage()).cdata for t in _tensors((args, kwargs))}
        result = operation(*args, **(kwargs or {}))
        self.alive = {key: (ref, size) for key, (ref, size) in self.alive.items() if not ref.expired()}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            ref = StorageWeakRef(storage)
            if ref.cdata not in given:  # a view, or a result in place, is memory that is there already
                self.alive[ref.cdata] = ref, storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def peak_bytes(work: Callable[[], Any]) -> int:
    """Bytes of the tensors that `work()` makes, at the moment when most of them are alive, its result included.

    Exact and the same on every machine: the sizes of results of torch operations. What an operation needs only inside
    itself, and what an allocator rounds up, is not in it. Tensors made before are not counted.
    """
    with _Held() as held:
        work()
    return held.peak
