"""Kernels compiled for five chips without one: what the compilers report, what fits, and that every kernel does."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from minillm.kernels.aot import (
    MODULES,
    CompileError,
    Report,
    all_cases,
    compile_all,
    compile_case,
    parse_amdgcn,
    parse_ptxas,
    tensor_core,
)
from minillm.kernels.chips import CHIPS, Occupancy, excesses, occupancy

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
TOYS = Path(__file__).with_name("toy_kernels.py")

PTXAS = """ptxas info    : 11 bytes gmem
ptxas info    : Compiling entry function 'example' for 'sm_90a'
ptxas info    : Function properties for example
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
"""
AMDGCN = """
\t\t.amdhsa_private_segment_fixed_size 9
\tv_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]
amdhsa.kernels:
  - .agpr_count:     16
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 20
    .sgpr_count:     23
    .sgpr_spill_count: 2
    .vgpr_count:     160
    .vgpr_spill_count: 5
"""


# every kernel of the project


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    return compile_all()


@pytest.mark.parametrize("chip", CHIPS)
def test_every_kernel_fits_spills_nothing_and_uses_the_tensor_core(chip: str, reports: list[Report]) -> None:
    asked = [(name, case.name) for name, case in all_cases(list(MODULES)) if case.chips is None or chip in case.chips]
    rows = [r for r in reports if r.chip == chip]
    assert [(r.module, r.name) for r in rows] == asked
    launches = {(r.module, r.name, r.num_warps, r.num_stages) for r in rows}
    assert len(launches) == len(rows) > 0
    assert [f"{r.name} {problem}" for r in rows for problem in r.problems()] == []
    assert all(r.registers > 0 and r.occupancy().blocks > 0 for r in rows)


@pytest.mark.soak
@pytest.mark.parametrize("chip", CHIPS)
def test_prefill_spills_nothing_for_any_mask_addressing_and_head_size(chip: str) -> None:
    """`cases()` lists a part of them, since each takes seconds to compile."""
    script = SWEEP.format(chip=chip)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "25 compiled\n"), ended.stdout + ended.stderr


SWEEP = """
from minillm.kernels import aot, flash_attention

kinds = ("causal", "full", "paged", "window", "paged window")
made = [flash_attention.case(kind, dim, "bf16", "{chip}") for kind in kinds for dim in flash_attention.HEAD_SIZES]
reports = [aot.compile_case(case, "{chip}") for case in made]
problems = [f"{{r.name}} {{problem}}" for r in reports for problem in r.problems()]
print(*problems, f"{{len(reports)}} compiled", sep="\\n")
"""


def test_every_module_has_a_case_for_every_chip(reports: list[Report]) -> None:
    assert {(r.module, r.chip) for r in reports} == {(name, chip) for name in MODULES for chip in CHIPS}
    assert all(set(case.chips or ()) <= set(CHIPS) for _, case in all_cases(list(MODULES)))


def jitted(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
            and any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list)]


def test_every_kernel_that_is_launched_has_a_case(reports: list[Report]) -> None:
    """What is under @triton.jit and no other such function calls, in its file or another, is launched by the host."""
    functions = [(path.stem, function) for path in KERNELS.glob("*.py") for function in jitted(path)]
    calls = [node.func for _, function in functions for node in ast.walk(function) if isinstance(node, ast.Call)]
    called = {ast.unparse(call).split(".")[-1] for call in calls}
    launched = {(module, function.name) for module, function in functions if function.name not in called}
    assert ("rms_norm", "add_rms_norm_kernel") in launched
    assert {(r.module, r.kernel) for r in reports} == launched


def test_one_chip_and_one_kernel_can_be_asked_for() -> None:
    rows = compile_all(["sm_80"], ["rms_norm"])
    assert {(r.chip, r.module) for r in rows} == {("sm_80", "rms_norm")}


def test_cases_can_be_chosen_by_how_their_names_begin() -> None:
    rows = compile_all(["sm_80"], ["rms_norm", "swiglu"], ("rms_norm 576", "swiglu"))
    assert [r.name for r in rows] == ["rms_norm 576 bf16", "swiglu 1536 bf16", "swiglu 14336 bf16"]


def test_a_row_of_sums_needs_little_shared_memory(reports: list[Report]) -> None:
    assert all(r.shared_bytes <= 1024 and r.instructions == [] for r in reports if r.module == "rms_norm")


# what the compilers make of small kernels


def toys(*pairs: str, cache: Path | None = None) -> list[dict | str]:
    """Each "NAME:CHIP" of toy_kernels.py as its report, or its error as text."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if cache:
        environment["TRITON_CACHE_DIR"] = str(cache)
    run = subprocess.run([sys.executable, str(TOYS), *pairs], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


def test_the_instruction_depends_on_chip_and_rows() -> None:
    pairs = [f"{name}:{chip}" for name in ("prefill", "decode") for chip in CHIPS]
    found = [r["instructions"] for r in toys(*pairs)]
    assert found == [["mma"], ["mma"], ["wgmma"], ["tcgen05"], ["mfma"], ["mma"], ["mma"], ["mma"], ["mma"], ["mfma"]]


def test_what_spills_exceeds_or_misses_its_instruction_is_named() -> None:
    greedy, amd, deep, small, narrow, plain = toys("greedy:sm_80", "greedy:gfx942", "deep:sm_90", "deep:sm_89",
                                                   "narrow:sm_90", "plain:sm_90")
    number = r"[\d,]+"
    assert re.fullmatch(f"spills {number} bytes stored, {number} bytes loaded, {number} bytes of stack",
                        greedy["problems"][0])
    assert re.fullmatch(f"spills {number} vector registers, {number} bytes of scratch", amd["problems"][0])
    assert deep["problems"] == []
    assert small["problems"] == [f"takes {small['shared_bytes']:,} bytes of shared memory in a block, of 101,376"]
    assert narrow["problems"] == ["uses mma, expected wgmma"]
    assert plain["problems"] == ["uses no tensor core, expected mma"]


def test_what_does_not_compile_says_why() -> None:
    mismatched, unnamed = toys("mismatched:sm_90", "unnamed:sm_90")
    assert mismatched.startswith("CompilationError")
    assert "16 and 32" in mismatched
    assert unnamed.startswith("ValueError: unnamed: arguments are ['q_ptr', 'ROWS', 'KEYS', 'D']: expected")


def test_a_kept_result_gives_the_same_figures(tmp_path: Path) -> None:
    """Triton compiles the first time and reads its cache the second; ptxas's report is in neither."""
    pairs = [f"decode:{chip}" for chip in ("sm_80", "sm_100", "gfx942")]
    first = toys(*pairs, cache=tmp_path)
    kept = sorted(tmp_path.rglob("*.json"))
    assert len(kept) >= 3
    assert toys(*pairs, cache=tmp_path) == first
    assert sorted(tmp_path.rglob("*.json")) == kept


# parsing


def test_ptxas_is_read() -> None:
    assert parse_ptxas(PTXAS) == (168, {"bytes stored": 12, "bytes loaded": 8, "bytes of stack": 16})


def test_amd_metadata_is_read() -> None:
    """The total of vector registers is .vgpr_count; directives of similar names do not count."""
    assert parse_amdgcn(AMDGCN) == (160, {"vector registers": 5, "scalar registers": 2, "bytes of scratch": 20})


@pytest.mark.parametrize("line", ["spill stores", "Used 168"])
def test_a_figure_that_ptxas_does_not_give_is_an_error(line: str) -> None:
    log = "".join(kept for kept in PTXAS.splitlines(keepends=True) if line not in kept)
    with pytest.raises(CompileError, match="has 0 matches of"):
        parse_ptxas(log)


@pytest.mark.parametrize("key", [".vgpr_count", ".vgpr_spill_count", ".sgpr_spill_count", "  .private_segment"])
def test_a_figure_that_amd_metadata_lacks_is_an_error(key: str) -> None:
    text = "".join(kept for kept in AMDGCN.splitlines(keepends=True) if key not in kept)
    with pytest.raises(CompileError, match="has 0 matches of"):
        parse_amdgcn(text)


def test_two_kernels_in_one_report_are_an_error() -> None:
    for parse, text in ((parse_ptxas, PTXAS), (parse_amdgcn, AMDGCN)):
        with pytest.raises(CompileError, match="has 2 matches"):
            parse(text + text)


@pytest.mark.parametrize(("assembly", "found"), [
    ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1;", ["tcgen05"]), ("tcgen05.ld.sync.aligned.32x32b", []),
    ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", ["wgmma"]), ("wgmma.fence.sync.aligned;", []),
    ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", ["mma"]), ("ldmatrix.sync.aligned.m8n8", []),
    ("mma.sync.a; wgmma.mma_async.b;", ["wgmma", "mma"]), (AMDGCN, ["mfma"]), ("", [])])
def test_tensor_core_instructions_are_told_apart(assembly: str, found: list[str]) -> None:
    assert tensor_core(assembly) == found


# occupancy, against sums done by hand


@pytest.mark.parametrize(("chip", "asked", "blocks", "limit"), [
    # 168 = 21·8 registers: 512 // 168 = 3 warps to each of 4 schedulers, 12 in all; 4 to a block
    ("sm_90", (4, 168, 0), 3, "registers"),
    # 169 are handed out as 176: 512 // 176 = 2 warps a scheduler
    ("sm_90", (4, 169, 0), 2, "registers"),
    ("sm_90", (8, 255, 0), 1, "registers"),
    # 64 KiB and 1 KiB reserved: 228 // 65 = 3
    ("sm_90", (4, 64, 64 * 1024), 3, "shared memory"),
    # the largest block leaves room for itself alone; on sm_80 163 + 1 KiB, on sm_89 99 + 1
    ("sm_80", (4, 64, 163 * 1024), 1, "shared memory"),
    ("sm_89", (4, 64, 99 * 1024), 1, "shared memory"),
    # 32 registers: 512 // 32 = 16 warps a scheduler, 64 in all, which is also what an SM holds
    ("sm_80", (4, 32, 0), 16, "registers + warps"),
    ("sm_89", (4, 32, 0), 12, "warps"),
    ("sm_89", (1, 16, 0), 24, "blocks"),
    # 256 of 512 columns of tensor memory
    ("sm_100", (4, 64, 1024, 256), 2, "tensor memory"),
    # CDNA3: 512 // 256 = 2 waves a SIMD, 8 in all; LDS 64 KiB, nothing reserved
    ("gfx942", (8, 249, 16 * 1024), 1, "registers"),
    ("gfx942", (4, 64, 32 * 1024), 2, "shared memory"),
    ("gfx942", (4, 64, 0), 8, "registers + warps")])
def test_occupancy_is_what_the_sum_gives(chip: str, asked: tuple, blocks: int, limit: str) -> None:
    warps = asked[0]
    assert occupancy(CHIPS[chip], *asked) == Occupancy(blocks, blocks * warps, CHIPS[chip].max_warps, limit)
    assert excesses(CHIPS[chip], *asked) == []


@pytest.mark.parametrize(("chip", "asked", "words"), [
    ("sm_80", (4, 64, 163 * 1024 + 1), "166,913 bytes of shared memory in a block, of 166,912"),
    ("gfx942", (4, 64, 64 * 1024 + 1), "65,537 bytes of shared memory in a block, of 65,536"),
    ("sm_90", (64, 32, 0), "2,048 threads in a block, of 1,024"),
    ("sm_90", (4, 256, 0), "256 registers in a thread, of 255"),
    ("sm_100", (4, 64, 0, 513), "513 columns of tensor memory, of 512"),
    ("sm_90", (4, 64, 0, 1), "1 columns of tensor memory, of 0"),
    ("sm_90", (32, 128, 0), "128 registers for each of 1024 threads")])
def test_what_does_not_fit_is_named(chip: str, asked: tuple, words: str) -> None:
    found = excesses(CHIPS[chip], *asked)
    assert len(found) == 1
    assert words in found[0]


# refusals


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="chip is 'sm_91': expected one of sm_80, sm_89, sm_90, sm_100, gfx942"):
        compile_all(["sm_91"])
    with pytest.raises(ValueError, match=f"kernel is 'softmax': expected one of {', '.join(MODULES)}"):
        compile_all(modules=["softmax"])


def test_a_machine_without_triton_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minillm.kernels.aot.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="triton is not installed"):
        compile_all()


def test_an_interpreted_kernel_is_refused() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels are compiled here")
    case = importlib.import_module("minillm.kernels.rms_norm").cases()[0]
    with pytest.raises(ValueError, match="interpreted: expected TRITON_INTERPRET unset"):
        compile_case(case, "sm_90")


def test_a_process_that_fails_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here Python ends at once, for want of itself."""
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    with pytest.raises(CompileError, match=r"^.+$"):
        compile_all(["sm_90"], ["rms_norm"])
