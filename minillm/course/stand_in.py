"""Load a file that holds Triton kernels where there is no Triton, so that its other exercises can be checked there."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace


@contextlib.contextmanager
def where_triton_is_missing() -> Iterator[None]:
    """While this lasts, `import triton` works on a machine without it; what it gives only decorates, and is gone after.

    Kernels of the package that are imported on the way are forgotten too: whoever imports them later is told the truth.
    """
    if importlib.util.find_spec("triton") is not None:
        yield
        return
    before = dict(sys.modules)
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.__spec__ = ModuleSpec("triton", None)
    triton.jit, triton.language = (lambda function: function), language
    triton.knobs = SimpleNamespace(runtime=SimpleNamespace(interpret=False))
    language.constexpr = lambda value: value
    sys.modules |= {"triton": triton, "triton.language": language}
    try:
        yield
    finally:
        for name in list(sys.modules):
            if name.partition(".")[0] == "triton" or name.startswith("minillm.kernels."):
                _forget(name)
                if name in before:
                    sys.modules[name] = before[name]


def _forget(name: str) -> None:
    """Undo `import name`, also for `from package import name`, which reads the package's attribute."""
    del sys.modules[name]
    package, _, last = name.rpartition(".")
    if parent := sys.modules.get(package):
        vars(parent).pop(last, None)
