"""--using exercises: the reader's functions serve the model, those that pass; the others stay ours, with the reason."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import solved

from minillm import cli
from minillm.course import catalogue, exchange, running, workspace
from minillm.course.exercise import Exercise, Target
from minillm.course.workspace import Workspace

SERVING = [e for e in catalogue.EXERCISES if not e.targets[0].module.startswith("minillm.course")]
MODEL = ["--model", "smollm2", "--max-tokens", "4"]
RUNS = {
    "plan": [["plan", "--model", "llama-2-7b", "--hardware", "h100"]],
    "generate": [["generate", "Name a colour.", *MODEL],
                 ["generate", "Name a colour.", *MODEL, "--temperature", "1", "--top-p", "0.5", "--seed", "1"]],
    "chat": [["chat", *MODEL]],
}


def texts_in_a_tree(model, report: exchange.Report) -> None:
    """What lesson 2 does with a prefix tree: two prompts that begin alike."""
    from minillm.decoding.sampling import SamplingParams
    from minillm.llm import LLM

    llm = LLM(model, attention=report.attention, prefix_index="radix")
    for country in ("France", "Spain"):
        llm.generate(f"Name the capital of {country}.", SamplingParams(temperature=0, max_tokens=2))


def fewer_bits(model, report: exchange.Report) -> None:
    """What lesson 2 does with K and V in eight and in four bits."""
    from minillm.decoding.sampling import SamplingParams
    from minillm.llm import LLM

    for dtype in ("int8", "int4"):
        llm = LLM(model, attention=report.attention, kv_cache_dtype=dtype)
        llm.generate("Name a colour.", SamplingParams(temperature=0, max_tokens=2))


def a_batch_that_waits(model, report: exchange.Report) -> None:
    """What lesson 3 does with fixed batches: two requests, of which the batcher decides when they start."""
    from minillm.cache.contiguous import ContiguousKVCache
    from minillm.decoding.sampling import SamplingParams
    from minillm.llm import LLM
    from minillm.serving import batching

    llm = LLM(model, attention=report.attention)
    requests = [llm.request("Name a colour.", SamplingParams(temperature=0, max_tokens=n)) for n in (1, 2)]
    cache = ContiguousKVCache(llm.model.kv_specs(), 2, 32, llm.model.dtype)
    batching.serve(llm.model, cache, requests, 2, timeout=0.0)
    batching.slot_efficiency([len(request.answers[0].token_ids) for request in requests])


def memory_runs_out(model, report: exchange.Report) -> None:
    """What lesson 3 does with continuous batching: two that outgrow the pool together, so that one is preempted."""
    from minillm.decoding.sampling import SamplingParams
    from minillm.llm import LLM

    alone = LLM(model, attention=report.attention, block_size=4, max_num_seqs=1, max_model_len=20)  # five blocks
    llm = LLM(model, attention=report.attention, block_size=4, kv_cache_memory_bytes=alone.cache.bytes)
    llm.generate(["One two", "Red blue"], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))


def six_puzzles(model, report: exchange.Report) -> None:
    """What lesson 4 does first: a launch of each puzzle's kernel."""
    import torch
    from minillm.kernels import puzzles

    x = torch.arange(4.0, device="cuda" if torch.cuda.is_available() else "cpu")
    rows, table = x.view(2, 2), torch.tensor([0], dtype=torch.int32, device=x.device)
    puzzles.add(x, x, 4), puzzles.gaps(x), puzzles.row_sum(rows), puzzles.softmax(rows), puzzles.matmul(rows, rows)
    puzzles.gather(rows[None], table, 2)


def heads_tiles_and_splits(model, report: exchange.Report) -> None:
    """What lesson 4 does in torch: heads that share K and V, a mask, tiles, splits that are merged, and latents."""
    import torch

    from minillm.attention import flash, reference, variants

    q, kv = torch.ones(2, 2, 1), torch.ones(2, 1, 1)  # [S, H, D], [S, H_kv, D]
    variants.grouped_query(q, kv, kv, 1.0, reference.causal_mask(2, 2, None, "cpu"))
    flash.split_attention(q, kv, kv, 1.0, splits=2)
    variants.mla_absorbed(q, q, kv[:, 0], kv[:, 0], *torch.ones(2, 2, 1, 1))


def two_kernels(model, report: exchange.Report) -> None:
    """What lesson 4 does with the package's kernels: a prefill, and a decode step over blocks."""
    import torch
    from minillm.kernels import flash_attention, paged_decode

    x = torch.ones(1, 1, 64, device="cuda" if torch.cuda.is_available() else "cpu")
    one = torch.ones(1, dtype=torch.int32, device=x.device)
    flash_attention.flash_attention(x, x, x, [1], [1], 1.0)
    paged_decode.paged_decode(x, x[None], x[None], one[None] - 1, one, 1.0)


NOTEBOOKS = {  # what no command runs
    "02_kv_cache_and_paging": (texts_in_a_tree, fewer_bits),
    "03_batching": (a_batch_that_waits, memory_runs_out),
    "04_attention": (six_puzzles, heads_tiles_and_splits, two_kernels),
}
# appended to a file of solutions: every call of a function of it leaves the function's name in $CALLS
SPY = '''

import functools as _functools
import os as _os


def _spied(function):
    @_functools.wraps(function)
    def wrapper(*args, **kwargs):
        with open(_os.environ["CALLS"], "a") as _file:
            print(function.__name__, file=_file)
        return function(*args, **kwargs)

    return wrapper


for _class, _name in {names!r}:
    if _class:
        setattr(globals()[_class], _name, _spied(getattr(globals()[_class], _name)))
    else:
        globals()[_name] = _spied(globals()[_name])
'''


def called(exercise: Exercise) -> tuple[Target, ...]:
    """What Python calls of an exercise: of a Triton kernel the launcher; within a compiled one, nothing."""
    if exercise.launcher:
        return (exercise.launcher,)
    compiled = exercise.needs_triton and not os.environ.get("TRITON_INTERPRET")
    return () if compiled else exercise.targets


def packages_own() -> dict[str, object]:
    return {str(t): t.resolve() for e in SERVING for t in e.functions}


def test_all_solutions_are_used_and_undone(clone: Workspace) -> None:
    before = packages_own()
    solved(clone)
    report = exchange.exchange()
    try:
        assert report.used == SERVING
        assert report.kept == []
        assert report.attention == "reference"
        after = packages_own()
        assert all(after[name] is not before[name] for name in before)
        written = [getattr(function, "fn", function) for function in after.values()]  # fn: what a Triton kernel is of
        assert all(function.__code__.co_filename.startswith(str(clone.mine)) for function in written)
        assert report.lines()[0].startswith("yours: 0.1 roofline_seconds, 1.1 request_metrics")
    finally:
        report.undo()
    assert packages_own() == before


def test_a_wrong_one_is_named_and_ours_is_used(clone: Workspace, write: Callable) -> None:
    before = packages_own()
    solved(clone)
    path = clone.file(catalogue.STEPS[1])
    path.write_text(path.read_text().replace("softmax(scores, dim=-1)", "softmax(scores, dim=-2)"))
    report = exchange.exchange()
    try:
        assert [e.id for e, _ in report.kept] == ["1.5"]
        assert report.lines()[-1] == "ours: 1.5 causal_attention (not right yet, minillm check 1.5 says where)"
        name = "minillm.attention.reference.causal_attention"
        assert packages_own()[name] is before[name]
        # the reader's 1.6 passes, and calls ours in place of the reader's 1.5
        ragged = catalogue.find("1.6").targets[0].resolve()
        assert ragged.__globals__["causal_attention"] is before[name]
    finally:
        report.undo()


def test_stubs_are_not_written_yet(clone: Workspace) -> None:
    report = exchange.exchange()
    assert report.used == []
    assert {why for _, why in report.kept} == {"not written yet"}
    assert report.attention is None
    assert report.lines()[0] == "yours: none yet"
    assert len(report.lines()) == 2
    assert report.lines()[1] == "ours: 0.1 roofline_seconds, 1.1 request_metrics, 1.2 step_totals, … (not written yet)"
    report.kept = [(exercise, why) for exercise, why in report.kept if exercise.id in ("1.1", "1.2", "1.3", "1.4")]
    assert report.lines()[1] == ("ours: 1.1 request_metrics, 1.2 step_totals, 1.3 greedy and top_p_filter, "
                                 "1.4 cached_tokens (not written yet)")


def test_a_file_that_is_gone_or_broken_stops_nothing(clone: Workspace) -> None:
    solved(clone)
    clone.file(catalogue.STEPS[0]).unlink()
    clone.file(catalogue.STEPS[1]).write_text("def broken(:\n")
    report = exchange.exchange()
    assert {e.step_number for e in report.used} == set(catalogue.STEPS) - {0, 1}
    report.undo()
    assert "0.1 roofline_seconds (mine/exercises/step0_meet_the_machine.py is not there)" in "\n".join(report.lines())
    assert "is no Python yet" in report.lines()[-1]


def test_a_worker_process_is_handed_the_ids(clone: Workspace) -> None:
    solved(clone)
    code = ("from minillm.course import exchange; from minillm.measure import cost; "
            "report = exchange.exchange(ids=['0.1']); print(report.ids, cost.roofline_seconds.__code__.co_filename)")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == f"['0.1'] {clone.file(catalogue.STEPS[0])}\n"


def test_methods_are_exchanged_as_one_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packaged.py").write_text("class Pool:\n    def take(self):\n        return 'ours'\n"
                                          "    def give(self):\n        return 'ours'\n"
                                          "    def both(self):\n        return self.take(), self.give()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import packaged

    (tmp_path / "mine.py").write_text("import packaged\n\n\nclass PoolTake(packaged.Pool):\n    def take(self):\n"
                                      "        return 'yours'\n\n\nclass PoolGive(packaged.Pool):\n"
                                      "    def give(self):\n"
                                      "        return 'yours after ' + super().give()\n")
    module = running.load_file(tmp_path / "mine.py")
    targets = [Target.parse("packaged:Pool.take"), Target.parse("packaged:Pool.give")]
    assert exchange.combined_class(module, targets[:1])().both() == ("yours", "ours")
    assert exchange.combined_class(module, targets)().both() == ("yours", "yours after ours")
    assert isinstance(exchange.combined_class(module, targets)(), packaged.Pool)
    exercise = Exercise("9.1", (targets[0],), "", 5, 1, "", ("", "", ""), "", "", ())

    ours = running.originals(exercise)["take"]
    with running.forbidding(exercise) as called:
        assert ours().both() == ("ours", "ours")
        with pytest.raises(running.ForbiddenError, match=r"packaged\.Pool\.take: this is the function you"):
            packaged.Pool().take()
    assert called
    assert packaged.Pool().take() == "ours"
    sys.modules.pop("packaged")


def test_each_function_serves_where_the_catalogue_says(smollm2, clone: Workspace, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Every exercise's used_by is run with --using exercises, and the reader's function is seen called."""
    import io

    from minillm.model import zoo

    solved(clone)
    for number, step in catalogue.STEPS.items():
        names = [(t.owner and t.reader_name, t.function) for e in catalogue.of_step(number) for t in called(e)]
        clone.file(step).write_text(clone.file(step).read_text() + SPY.format(names=names))
    calls = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(calls))
    model = replace(smollm2, model=copy.deepcopy(smollm2.model))  # an LLM packs what it loads
    monkeypatch.setattr(zoo, "load", lambda *args, **kwargs: model)
    monkeypatch.setattr(cli.engine, "ensure", lambda model: None)
    monkeypatch.setattr(cli.engine, "PROBE_TOKENS", 2)
    monkeypatch.setattr(exchange.checking, "check", lambda place, exercises: [
        exchange.checking.Checked(e, running.Result(e.id, running.PASSED)) for e in exercises])
    seen: dict[str, set[str]] = {}
    for name, lines in RUNS.items():
        calls.write_text("")
        for line in lines:
            monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
            assert cli.main([*line, "--using", "exercises"]) == 0
        seen[name] = set(calls.read_text().split())
    for notebook, sections in NOTEBOOKS.items():
        calls.write_text("")
        report = exchange.exchange(ids=[e.id for e in SERVING])
        try:
            for run in sections:
                run(smollm2, report)
        finally:
            report.undo()
        seen[notebook] = set(calls.read_text().split())
    for e in SERVING:
        assert e.used_by
        for name in e.used_by:
            assert {t.function for t in called(e)} <= seen[name], f"{e.id} is not called by {name}"


def test_the_text_is_the_same_with_all_solutions_as_without(smollm2, clone: Workspace) -> None:
    from minillm.decoding.sampling import SamplingParams
    from minillm.llm import LLM

    params = [SamplingParams(temperature=0, max_tokens=12),
              SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=12)]
    without = [LLM(smollm2).generate("The capital of France is", p)[0].outputs[0].text for p in params]
    solved(clone)
    workspace.sync(clone)
    report = exchange.exchange(ids=[e.id for e in SERVING])
    try:
        llm = LLM(smollm2, attention=report.attention)
        assert [llm.generate("The capital of France is", p)[0].outputs[0].text for p in params] == without
    finally:
        report.undo()
