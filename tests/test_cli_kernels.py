"""`minillm kernels`: the table, its exit codes, and what is refused. What compiles is tests/kernels/test_aot.py's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from minillm.kernels.aot import MODULES, CompileError, Report
from minillm.kernels.chips import CHIPS

from minillm.cli import main
from minillm.cli.kernels import TARGETS

GOOD = Report("attention", "flash d128 causal bf16", "flash_kernel", "sm_90", 4, 3, 168,
              {"bytes stored": 0, "bytes loaded": 0, "bytes of stack": 0}, 98304, 0, ["wgmma"], "wgmma")
ROWS = [GOOD, replace(GOOD, name="norm", num_warps=8, num_stages=1, registers=32, shared_bytes=16, instructions=[],
                      expected=None),
        replace(GOOD, chip="gfx942", spills={"vector registers": 0, "scalar registers": 0, "bytes of scratch": 0},
                shared_bytes=32768, instructions=["mfma"], expected="mfma")]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    def run_line(*arguments: str) -> Ended:
        return Ended(main(["kernels", *arguments]), *capsys.readouterr())

    return run_line


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Report]], list]:
    """Have these reports for whatever is asked; the list returned takes what was."""

    def have(reports: list[Report]) -> list:
        asked = []
        monkeypatch.setattr("minillm.kernels.aot.compile_all", lambda *names: asked.append(names) or reports)
        return asked

    return have


def test_the_table_shows_what_each_kernel_takes(run: Callable[..., Ended], compiled: Callable) -> None:
    asked = compiled(ROWS)
    ended = run()
    assert ended.code == 0
    assert asked == [(None, None)]
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    # one table a kernel, its chips below each other; 96 KiB and 1 KiB reserved: two blocks of four warps in 228 KiB
    at = lines.index("flash d128 causal bf16 regs spills shared resident limited by uses")
    assert lines[at + 2 : at + 4] == ["sm_90: 4 warps, 3 stages 168 0 96 K 8/64 shared wgmma",
                                      "gfx942: 4 warps, 3 stages 168 0 32 K 8/32 shared mfma"]
    # 32 registers hold 64 warps of 32 lanes: as many as an SM takes
    assert "sm_90: 8 warps, 1 stage 32 0 16 B 64/64 warps -" in lines
    assert any(line.startswith("sm_90: H100, H200; gfx942: MI300X.") for line in lines)
    assert "Every kernel compiles" in " ".join(lines)


def test_tables_fit_80_columns_and_lose_nothing(run: Callable[..., Ended], compiled: Callable,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    widest = replace(GOOD, chip="sm_100", name="a name that is longer than its column by far", num_warps=16,
                     registers=128, shared_bytes=223 * 1024, tensor_columns=512, instructions=["tcgen05"],
                     expected="tcgen05")
    compiled([widest])
    out = run().out
    assert max(map(len, out.splitlines())) <= 80
    assert "sm_100: 16 warps, 3 stages" in out
    assert "longer than its" not in out
    assert all(part in out for part in ("a name that is longer", "tcgen05", "223 K", "regs+shared"))


@pytest.mark.parametrize(("change", "words"), [
    ({"spills": {"bytes stored": 1200, "bytes loaded": 8, "bytes of stack": 0}}, "spills 1,200 bytes stored, 8 bytes"),
    ({"shared_bytes": 300_000}, "takes 300,000 bytes of shared memory in a block, of 232,448"),
    ({"instructions": ["mma"]}, "uses mma, expected wgmma"),
    ({"instructions": ["wgmma", "mma"]}, "uses wgmma and mma, expected wgmma"),
    ({"instructions": []}, "uses no tensor core, expected wgmma")])
def test_trouble_is_a_line_and_exit_code_1(run: Callable[..., Ended], compiled: Callable, change: dict,
                                           words: str) -> None:
    compiled([replace(GOOD, **change), ROWS[1]])
    ended = run()
    assert ended.code == 1
    assert max(map(len, ended.out.splitlines())) <= 80
    assert f"flash d128 causal bf16 on sm_90 {words}" in " ".join(ended.out.split())
    assert "Every kernel compiles" not in ended.out
    assert run("--json").code == 1


def test_json_holds_every_figure(run: Callable[..., Ended], compiled: Callable) -> None:
    compiled(ROWS)
    first, *others = json.loads(run("--json").out)
    assert len(others) == 2
    assert (first["name"], first["registers"], first["shared_bytes"]) == ("flash d128 causal bf16", 168, 98304)
    assert first["occupancy"] == {"blocks": 2, "warps": 8, "max_warps": 64, "limit": "shared memory"}
    assert first["problems"] == []


def test_one_kernel_on_one_chip_is_compiled(run: Callable[..., Ended]) -> None:
    ended = run("--chip", "sm_90", "--kernel", "rms_norm", "--json")
    assert ended.code == 0
    assert {(r["chip"], r["module"]) for r in json.loads(ended.out)} == {("sm_90", "rms_norm")}
    assert "compiling rms_norm for sm_90" in ended.err


def test_chips_and_kernels_may_be_repeated(run: Callable[..., Ended], compiled: Callable) -> None:
    asked = compiled(ROWS)
    run("--chip", "sm_90", "--chip", "gfx942", "--chip", "sm_90", "--kernel", "rms_norm", "--kernel", "swiglu")
    assert asked == [(["sm_90", "gfx942"], ["rms_norm", "swiglu"])]


@pytest.mark.parametrize(("line", "words"), [
    (["--chip", "sm_91"], "minillm: chip is 'sm_91': expected one of sm_80, sm_89, sm_90, sm_100, gfx942"),
    (["--kernel", "softmax"], f"minillm: kernel is 'softmax': expected one of {', '.join(MODULES)}"),
    (["--chip", "h200"], "--chip is 'h200': expected 'sm_90', what that compiles for"),
    (["--chip", "sm_90", "--chip", "RTX 4090"], "--chip is 'RTX 4090': expected 'sm_89'"),
    (["--chips", "sm_90"], "no option '--chips': expected '--chip'")])
def test_unknown_names_are_refused_in_a_line(run: Callable[..., Ended], line: list[str], words: str) -> None:
    ended = run(*line)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert words.removeprefix("minillm: ") in ended.err


def test_a_suggested_target_is_that_chips() -> None:
    assert set(TARGETS.values()) == set(CHIPS)
    for name, target in TARGETS.items():
        assert name == "l4" or name in CHIPS[target].sold_as.lower().replace(" ", "")


def test_a_machine_without_triton_is_told(run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minillm.kernels.aot.find_spec", lambda name: None)
    ended = run()
    assert ended.code == 2
    assert ended.err.startswith("minillm: triton is not installed")


def test_a_kernel_that_does_not_compile_is_a_line(run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*names: object) -> None:
        raise CompileError("flash d128 on sm_90: CompilationError: shapes differ")

    monkeypatch.setattr("minillm.kernels.aot.compile_all", fail)
    ended = run()
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1] == "minillm: flash d128 on sm_90: CompilationError: shapes differ"


def test_help_says_what_it_does(run: Callable[..., Ended]) -> None:
    ended = run("--help")
    assert ended.code == 0
    assert all(word in ended.out for word in ("without having one", "registers", "--chip", "--kernel", "--json"))
