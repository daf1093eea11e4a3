"""benchmarks/gpu_kernels.py where there is no GPU: its cases compute what they say, a run that is cut off resumes."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCHMARKS))
    import gpu_kernels

    yield gpu_kernels
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def cases(bench):
    import gpu_cases

    return gpu_cases


def results(work) -> dict[str, torch.Tensor]:
    found = {name: call() for name, call in work.calls.items()}
    return {name: (out[0] if isinstance(out, tuple) else out).double() for name, out in found.items()}


# what is timed


@pytest.mark.parametrize("name", ["full", "causal", "norm", "gated", "rope", "decode", "int8", "fp8"])
def test_the_calls_of_a_case_compute_the_same(cases, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32: Triton's interpreter holds bfloat16 as integers, and multiplies matrices of those."""
    monkeypatch.setattr(cases, "DTYPE", torch.float32)
    small = {"tokens": 40, "heads": 2, "dim": 64}
    decode = {"device": "cpu", "rows": 2, "context": 33, "heads": 4, "kv_heads": 2, "dim": 64, "splits": (1, 3)}
    torch.manual_seed(0)
    work = {
        "full": lambda: cases.prefill("cpu", 20, False, **small),
        "causal": lambda: cases.prefill("cpu", 20, True, **small),
        "norm": lambda: cases.norm("cpu", 3, 40), "gated": lambda: cases.gated("cpu", 3, 40),
        "rope": lambda: cases.rope("cpu", 3, 4, 2, 64), "decode": lambda: cases.decode(**decode),
        "int8": lambda: cases.decode(**decode, kv="int8"), "fp8": lambda: cases.decode(**decode, kv="fp8"),
    }[name]()
    first, *others = results(work).values()
    if "3 splits" in work.calls:
        ours = work.calls["ours"]
        others.append(cases.paged_decode.paged_decode_reference(*ours.args, **ours.keywords).double())
    assert others
    for other in others:
        torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-4)


def test_what_a_case_takes_is_counted(cases) -> None:
    """Two prompts of 20 tokens, 2 heads of 64: two products of 20 x 20 x 64 multiply-adds each; half, causal."""
    small = {"tokens": 40, "heads": 2, "dim": 64}
    assert cases.prefill("cpu", 20, False, **small).flops == 2 * 2 * (2 * 2 * 20 * 20 * 64)
    assert cases.prefill("cpu", 20, True, **small).flops == 2 * 2 * (2 * 20 * 20 * 64)
    # K and V: 2 rows of 33 tokens, 2 heads of 64 values, of 2 bytes or 1
    assert cases.decode("cpu", 2, 33, heads=4, kv_heads=2, dim=64).bytes == 2 * 2 * 33 * 2 * 64 * 2
    assert cases.decode("cpu", 2, 33, "int8", heads=4, kv_heads=2, dim=64).bytes == 2 * 2 * 33 * 2 * 64
    assert cases.norm("cpu", 3, 40).bytes == 4 * 3 * 40 * 2
    assert cases.gated("cpu", 3, 40).bytes == 3 * 3 * 40 * 2
    # 4 + 2 + 2 heads read and written; 32 cosines and sines of 4 bytes and a slot of 8 for each of 3 tokens
    assert cases.rope("cpu", 3, 4, 2, 64).bytes == 2 * 3 * 8 * 64 * 2 + 3 * (2 * 32 * 4 + 8)
    assert cases.copy("cpu", 100).bytes == 200


def test_the_goals_come_first(cases) -> None:
    assert list(cases.CASES)[:8] == [
        "copy", *(f"prefill {n} {mask}" for n in (8192, 4096, 16384) for mask in ("full", "causal")),
        "decode 32 x 4096 bf16"]


# what is made of the times


def test_figures_are_medians_and_ratios_of_rounds(bench, cases) -> None:
    work = cases.Work({}, flops=6 * 10**12)
    found = bench.figures(work, {"ours": [2.0, 1.0, 9.0], "sdpa": [1.0, 2.0, 9.0]}, None)
    assert found["ours"] == {"seconds": 2.0, "fastest_s": 1.0, "slowest_s": 9.0, "tflops_per_s": 3.0}
    assert found["speed_over_sdpa"] == 1.0  # of 0.5, 2 and 1
    found = bench.figures(cases.Work({}, bytes=10**9), {"ours": [0.5]}, 4e9)
    assert (found["ours"]["gb_per_s"], found["ours"]["of_copy"]) == (2.0, 0.5)


def test_a_line_says_what_was_found(bench) -> None:
    ours = {"seconds": 1e-3, "tflops_per_s": 500.0}
    assert bench.line("prefill", {"ours": ours, "sdpa": ours, "speed_over_sdpa": 0.95}).split() == [
        "prefill", "1000.0", "µs", "500.0", "TFLOP/s", "0.95", "x", "sdpa"]
    assert bench.line("x", {"error": "OutOfMemoryError: all of it"}).endswith("OutOfMemoryError: all of it")


# runs that end early


class Clock:
    """A case takes ten seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.measured: list[str] = []
        self.saved: list[dict] = []

    def one(self, name: str, results: dict) -> dict:
        self.now += 10
        self.measured.append(name)
        return {"error": "broken"} if name == "bad" else {"ours": {"seconds": 1.0}}

    def run(self, bench, names: list[str], kept: dict, budget: float = math.inf) -> dict:
        return bench.run(names, kept, self.one, lambda found: self.saved.append(dict(found)), budget, lambda: self.now)


def test_each_case_is_saved_when_it_is_measured(bench) -> None:
    clock = Clock()
    clock.run(bench, ["a", "b"], {})
    assert [list(found) for found in clock.saved] == [["a"], ["a", "b"]]


def test_what_is_kept_is_not_measured_again_and_what_failed_is(bench) -> None:
    clock, kept = Clock(), {"a": {"ours": {"seconds": 7.0}}, "b": {"error": "out of memory"}}
    found = clock.run(bench, ["a", "b", "c"], kept)
    assert clock.measured == ["b", "c"]
    assert found["a"] == {"ours": {"seconds": 7.0}}
    assert "error" not in found["b"]
    assert kept["b"] == {"error": "out of memory"}


def test_no_case_is_started_that_would_end_too_late(bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Three of ten seconds fit into 35; a fourth would not."""
    clock = Clock()
    clock.run(bench, list("abcde"), {}, 35)
    assert clock.measured == ["a", "b", "c"]
    assert "30 s: the rest is for another run" in capsys.readouterr().out


def test_a_case_that_fails_is_recorded_and_the_next_one_measured(bench) -> None:
    clock = Clock()
    assert clock.run(bench, ["bad", "b"], {}) == {"bad": {"error": "broken"}, "b": {"ours": {"seconds": 1.0}}}


def test_an_alternative_that_fails_is_dropped_and_named(bench) -> None:
    def fail() -> None:
        raise RuntimeError("out of\nshared memory")

    calls = {"ours": lambda: 1, "ours (64, 64)": fail, "sdpa": lambda: 2}
    assert bench.compile_all(calls) == {"ours (64, 64) failed": "RuntimeError: out of shared memory"}
    assert list(calls) == ["ours", "sdpa"]
    with pytest.raises(RuntimeError):
        bench.compile_all({"ours": fail})


def test_without_its_copy_a_case_is_an_error_in_a_line(bench) -> None:
    found = bench.measure("no such case", {}, 10)
    assert found["error"].startswith("KeyError")


def test_a_record_is_resumed_for_the_same_gpu_versions_and_kernels(bench, monkeypatch, tmp_path: Path) -> None:
    import record

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    identity = {"gpu": "NVIDIA H200", "kernels": bench.fingerprint(), "rounds": 20, "torch": "2.13"}
    path = record.path("gpu_kernels", "NVIDIA H200")
    assert path == tmp_path / "gpu_kernels_nvidia-h200.json"
    assert bench.resume(path, identity) == {}
    cases = {"copy": {"ours": {"seconds": 0.5}}}
    assert record.write("gpu_kernels", "NVIDIA H200", {**identity, "cases": cases}, {"torch": "2.13"}) == path
    assert bench.resume(path, identity) == cases
    for key in identity:
        assert bench.resume(path, {**identity, key: "another"}) == {}
    written = json.loads(path.read_text())
    assert written["device"] == "NVIDIA H200"
    assert {"date", "commit", "command", "versions"} <= set(written)
    path.write_text(path.read_text()[:-20])
    assert bench.resume(path, identity) == {}


def test_a_changed_kernel_is_another_one(bench, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(bench, "HERE", tmp_path / "benchmarks")
    kernel = tmp_path / "kernels" / "one.py"
    kernel.write_text("x = 1\n")
    before = bench.fingerprint()
    assert bench.fingerprint() == before
    kernel.write_text("x = 2\n")
    assert bench.fingerprint() != before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_told(bench, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_kernels.py"])
    assert bench.main() == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "gpu_kernels.py measures a GPU: expected one that torch.cuda sees\n"


def test_too_few_rounds_are_refused(bench, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_kernels.py", "--rounds", "9"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert "--rounds is 9: expected at least 10" in capsys.readouterr().err
