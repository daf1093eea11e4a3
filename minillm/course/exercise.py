"""What an exercise is: which function of the package, how hard, what it teaches, its three hints."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Target:
    """A function or method of the package, written `module:function` or `module:Class.method`."""

    module: str
    qualname: str

    @classmethod
    def parse(cls, text: str) -> Target:
        module, _, qualname = text.partition(":")
        return cls(module, qualname)

    @property
    def owner(self) -> str | None:
        """The class of a method; None for a function."""
        return self.qualname.partition(".")[0] if "." in self.qualname else None

    @property
    def function(self) -> str:
        return self.qualname.rpartition(".")[2]

    @property
    def reader_name(self) -> str:
        """The name in the reader's file: the function's own, or BlockPoolAllocate for BlockPool.allocate."""
        if self.owner is None:
            return self.qualname
        return self.owner + "".join(word.capitalize() for word in self.function.split("_"))

    def source_path(self) -> Path:
        """The file the target is written in; the module itself is not imported."""
        return Path(importlib.util.find_spec(self.module).origin)

    def import_module(self) -> ModuleType:
        return importlib.import_module(self.module)

    def holder(self) -> Any:
        """What the function is an attribute of: its module or its class."""
        module = self.import_module()
        return getattr(module, self.owner) if self.owner else module

    def resolve(self) -> Any:
        """The package's own function."""
        return getattr(self.holder(), self.function)

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname}"


@dataclass(frozen=True)
class Step:
    """One lesson's exercises: `step1_prefill_and_decode.py` beside notebook `01_prefill_and_decode`."""

    number: int
    name: str
    title: str

    @property
    def filename(self) -> str:
        return f"step{self.number}_{self.name}.py"

    @property
    def notebook(self) -> str:
        return f"{self.number:02d}_{self.name}.ipynb"


@dataclass(frozen=True)
class Exercise:
    """One entry of the catalogue.

    id         "1.3": step 1, third exercise
    targets    what the reader writes, usually one `module:function`
    minutes    how long it takes somebody who has read the lesson; difficulty 1 to 3
    hints      a question; each line's job; the code with blanks
    notice     what to look at when the reader's answer and ours stand side by side
    section    heading of the lesson's section that it belongs to
    used_by    where the reader's function runs once exchanged: "plan", "generate", "chat", or the notebook's stem
    core       False: stands under Further and does not count against progress
    warm_up    True, beside core=False: stands before the core exercises instead
    given      functions shown whole above the stub
    library    functions that would do the work, refused during a check
    backend    the attention backend under which the model calls the function; None: any
    launcher   of a Triton kernel: starts it. Shown whole below it, called by the check, exchanged with it
    """

    id: str
    targets: tuple[Target, ...]
    title: str
    minutes: int
    difficulty: int
    teaches: str
    hints: tuple[str, str, str]
    notice: str
    section: str
    used_by: tuple[str, ...]
    core: bool = True
    given: tuple[Target, ...] = ()
    library: tuple[str, ...] = ()
    backend: str | None = None
    launcher: Target | None = None
    warm_up: bool = False

    @property
    def step_number(self) -> int:
        return int(self.id.partition(".")[0])

    @property
    def functions(self) -> tuple[Target, ...]:
        """All of the package's functions that the reader's file has its own of: targets, then the launcher."""
        return self.targets if self.launcher is None else (*self.targets, self.launcher)

    @property
    def needs_triton(self) -> bool:
        return any(target.module.startswith("minillm.kernels.") for target in self.functions)

    @property
    def part(self) -> str:
        """Where it stands in its step: warm-up, core or further."""
        return "core" if self.core else "warm-up" if self.warm_up else "further"
