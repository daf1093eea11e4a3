"""Every kernel compiled ahead of time for five chips, none of which need be here: registers, spills, occupancy.

`compile_case` is the work, for one kernel and one chip. `compile_all` runs it in a process of its own, since Triton
decides when it is imported whether kernels are compiled or interpreted: `python -m minillm.kernels.aot`.
A figure that the compiler does not give is an error here, never a 0.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from minillm.kernels.case import Case
from minillm.kernels.chips import CHIPS, Occupancy, excesses, occupancy

# the modules of this folder that hold kernels, in reading order
MODULES = ("flash_attention", "merge", "paged_decode", "puzzles", "rms_norm", "rope_cache", "swiglu")

INSTRUCTIONS = {"tcgen05": r"\btcgen05\.mma\b", "wgmma": r"\bwgmma\.mma_async\b", "mma": r"\bmma\.sync\b",
                "mfma": r"\bv_mfma_"}


class CompileError(RuntimeError):
    """A kernel that does not compile, or whose compiler does not say what it took; one line."""


@dataclass(frozen=True)
class Report:
    """What one kernel takes on one chip.

    registers: 32-bit, of a thread; on gfx942 vector and accumulation registers together. spills: what left the
    registers for memory, by kind. shared_bytes: of a block. tensor_columns: of sm_100's tensor memory.
    instructions: the tensor-core ones found, the widest first; expected: the one that should be the only one.
    """

    module: str
    name: str
    kernel: str
    chip: str
    num_warps: int
    num_stages: int
    registers: int
    spills: dict[str, int]
    shared_bytes: int
    tensor_columns: int
    instructions: list[str]
    expected: str | None

    def occupancy(self) -> Occupancy:
        return occupancy(CHIPS[self.chip], self.num_warps, self.registers, self.shared_bytes, self.tensor_columns)

    def problems(self) -> list[str]:
        """Spills, limits exceeded, and a tensor-core instruction other than expected; one phrase each."""
        spilled = [f"{count:,} {what}" for what, count in self.spills.items() if count]
        found = ["spills " + ", ".join(spilled)] if spilled else []
        found += [f"takes {excess}" for excess in excesses(CHIPS[self.chip], self.num_warps, self.registers,
                                                           self.shared_bytes, self.tensor_columns)]
        if self.expected and self.instructions != [self.expected]:
            found.append(f"uses {' and '.join(self.instructions) or 'no tensor core'}, expected {self.expected}")
        return found


def compile_all(chips: list[str] | None = None, modules: list[str] | None = None,
                begins: tuple[str, ...] = ("",)) -> list[Report]:
    """Every case of `modules` for each of `chips` (default: all of both), compiled in a process of its own.

    begins: only cases whose names begin with one of these. Raises ValueError for an unknown name or where Triton is not
    installed, CompileError for a kernel that fails.
    """
    chips, modules = chips or list(CHIPS), modules or list(MODULES)
    check(chips, modules)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-P", "-m", "minillm.kernels.aot", "--chips", *chips, "--modules", *modules,
               "--begins", *begins]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        lines = run.stderr.strip().splitlines() or [f"the compiler ended with code {run.returncode}"]
        raise CompileError(lines[-1])
    return [Report(**fields) for fields in json.loads(run.stdout)]


def check(chips: list[str], modules: list[str]) -> None:
    """Raises ValueError for an unknown name or where Triton is not installed."""
    for what, names, known in (("chip", chips, list(CHIPS)), ("kernel", modules, list(MODULES))):
        for name in names:
            if name not in known:
                raise ValueError(f"{what} is '{name}': expected one of {', '.join(known)}")
    if find_spec("triton") is None:
        raise ValueError("triton is not installed: expected it, to compile kernels (pip install 'triton>=3.6', Linux)")


def compile_case(case: Case, chip: str, module: str = "") -> Report:
    """Compile one case for one chip, here and now; Triton keeps the result, and a kept one gives the same figures.

    Raises ValueError where the kernel is interpreted or its arguments do not match, and whatever Triton raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    limits = CHIPS[chip]
    target = GPUTarget(limits.backend, limits.arch, limits.warp_size)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    with triton.knobs.nvidia.scope(), contextlib.redirect_stdout(io.StringIO()) as log:
        triton.knobs.nvidia.dump_ptxas_log = True
        compiled = triton.compile(source(case), target=target, options=dict(options))
    if limits.backend == "cuda":
        assembly = compiled.asm["ptx"]
        # what Triton kept from before was not assembled just now
        told = log.getvalue() or assembler_log(assembly, target, options)
        registers, spills = parse_ptxas(told)
    else:
        assembly = compiled.asm["amdgcn"]
        registers, spills = parse_amdgcn(assembly)
    metadata = compiled.metadata
    return Report(module, case.name, case.kernel.__name__, chip, metadata.num_warps, case.num_stages, registers, spills,
                  metadata.shared, metadata.tmem_size if limits.tensor_columns else 0, tensor_core(assembly),
                  expected_instruction(case, chip))


def source(case: Case) -> Any:
    """Triton's description of what is compiled: each argument's type, its value if constant, its alignment."""
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    if not isinstance(case.kernel, JITFunction):
        raise ValueError(f"{case.name}: the kernel is interpreted: expected TRITON_INTERPRET unset before its import")
    signature, attributes = {}, {}
    if {*case.kernel.arg_names} != {*case.signature, *case.constexprs}:
        raise ValueError(f"{case.name}: arguments are {[*case.signature, *case.constexprs]}: expected "
                         f"{case.kernel.arg_names}")
    for index, name in enumerate(case.kernel.arg_names):
        kind, _, multiple = case.signature.get(name, "constexpr").partition(":")
        signature[name] = kind
        if kind.startswith("*") or multiple == "16":
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(case.kernel, signature=signature, constexprs=case.constexprs, attrs=attributes)


def assembler_log(ptx: str, target: Any, options: dict[str, int]) -> str:
    """What ptxas -v says of this PTX, run by Triton's own last stage: its flags and version are those of a launch."""
    from triton import knobs
    from triton.backends.compiler import Language
    from triton.compiler import make_backend

    backend, stages = make_backend(target), {}
    backend.add_stages(stages, backend.parse_options(dict(options)), Language.TRITON)
    with knobs.nvidia.scope(), contextlib.redirect_stdout(io.StringIO()) as log:
        knobs.nvidia.dump_ptxas_log = True
        stages["cubin"](ptx, {})
    return log.getvalue()


def parse_ptxas(log: str) -> tuple[int, dict[str, int]]:
    """Registers and spills of a thread, from ptxas -v. Raises CompileError where a figure is missing."""
    spills = {what: _only(rf"(\d+) bytes {words}", log) for what, words in
              {"bytes stored": "spill stores", "bytes loaded": "spill loads", "bytes of stack": "stack frame"}.items()}
    return _only(r"\bUsed (\d+) registers", log), spills


def parse_amdgcn(assembly: str) -> tuple[int, dict[str, int]]:
    """Registers and spills of a thread, from the kernel's metadata at the end of the assembly.

    .vgpr_count includes .agpr_count: since CDNA2 both come from one file. Raises CompileError for a missing figure.
    """
    counts = {key: _only(rf"^ *(?:- )?\.{key}: +(\d+)$", assembly) for key in
              ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")}
    return counts["vgpr_count"], {"vector registers": counts["vgpr_spill_count"],
                                  "scalar registers": counts["sgpr_spill_count"],
                                  "bytes of scratch": counts["private_segment_fixed_size"]}


def _only(pattern: str, text: str) -> int:
    found = re.findall(pattern, text, re.MULTILINE)
    if len(found) != 1:
        raise CompileError(f"the compiler's report has {len(found)} matches of '{pattern}': expected 1")
    return int(found[0])


def tensor_core(assembly: str) -> list[str]:
    """The kinds of tensor-core instruction in PTX or amdgcn assembly, the widest first."""
    return [name for name, pattern in INSTRUCTIONS.items() if re.search(pattern, assembly)]


def expected_instruction(case: Case, chip: str) -> str | None:
    """sm_90 multiplies 64 rows by a group of four warps (wgmma), sm_100 too (tcgen05); fewer rows are mma's on both."""
    if not case.tensor_core:
        return None
    if chip in ("sm_90", "sm_100") and case.warpgroup:
        return "wgmma" if chip == "sm_90" else "tcgen05"
    return "mma" if CHIPS[chip].backend == "cuda" else "mfma"


def all_cases(modules: list[str]) -> list[tuple[str, Case]]:
    """(module, case) for each case that the modules list."""
    return [(name, case) for name in modules for case in importlib.import_module(f"minillm.kernels.{name}").cases()]


def _compile_numbered(work: tuple[list[str], int, str]) -> Report | str:
    """One case by its number, for a process that cannot be sent the kernel itself; a failure as one line."""
    modules, number, chip = work
    module, case = all_cases(modules)[number]
    try:
        return compile_case(case, chip, module)
    except Exception as error:  # of any kind: Triton raises what each of its stages does
        return f"{case.name} on {chip}: {type(error).__name__}: {' '.join(str(error).split())[:500]}"


def main() -> int:
    """Compile what the command line names, in a process for each processor, and print the reports as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", nargs="+", default=list(CHIPS), choices=list(CHIPS))
    parser.add_argument("--modules", nargs="+", default=list(MODULES), choices=MODULES)
    parser.add_argument("--begins", nargs="+", default=[""], help="only cases whose names begin with one of these")
    asked = parser.parse_args()
    work = [(asked.modules, number, chip) for number, (_, case) in enumerate(all_cases(asked.modules))
            for chip in asked.chips
            if case.name.startswith(tuple(asked.begins)) and (case.chips is None or chip in case.chips)]
    # forked, so that torch and Triton are imported once
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("fork")) as pool:
        reports = list(pool.map(_compile_numbered, work))
    failures = [report for report in reports if isinstance(report, str)]
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        print(failures[0] + more, file=sys.stderr)
        return 1
    print(json.dumps([asdict(report) for report in reports]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
