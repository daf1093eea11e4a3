"""`minillm bench` and `minillm simulate`: counts as in the workload, what is refused, --watch's picture."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console
from tiny import tiny_llm

from minillm.cli import bench, flags, main, simulate, watch
from minillm.cli.lines import bytes_of, count_of
from minillm.measure import workload
from minillm.measure.workload import WorkItem
from minillm.serving import batching
from minillm.serving.engine import StepRecord

ITEMS = [WorkItem(0.0, 5 + 3 * i, 2 + 7 * i % 9) for i in range(6)]  # outputs 2, 9, 7, 5, 3, 10


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run a command line in this process, with the tiny model (96 tokens of context) as smollm2."""
    monkeypatch.setattr("minillm.cli.engine.load", lambda model, dtype, device, attention, kv_cache_dtype, **options:
                        tiny_llm(attention=attention, kv_cache_dtype=kv_cache_dtype, **options))

    def run_line(*arguments: str) -> Ended:
        code = main(arguments)
        return Ended(code, *capsys.readouterr())

    return run_line


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., list[str]]:
    """`--workload` and a file of these items."""

    def write(items: list[WorkItem]) -> list[str]:
        workload.save(tmp_path / "items.jsonl", items)
        return ["--workload", str(tmp_path / "items.jsonl")]

    return write


# bench


def test_the_counts_are_those_of_the_workload(run: Callable[..., Ended], file: Callable[..., list[str]]) -> None:
    line = ["bench", *file(ITEMS), "--max-num-seqs", "3", "--max-num-batched-tokens", "8", "--slo-ttft", "1e-9"]
    ended = run(*line, "--json")
    found = json.loads(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert found["requests"] == 6
    assert found["prompt_tokens"] == sum(item.prompt_tokens for item in ITEMS)
    assert found["output_tokens"] == sum(item.output_tokens for item in ITEMS)
    computed = found["prompt_tokens"] + found["output_tokens"] - 6  # the last token of each is never computed
    assert found["tokens_per_step"] * found["steps"] == pytest.approx(computed)
    assert (found["preemptions"], found["prefix_hit_rate"], found["refused"]) == (0, 0.0, {})
    assert (found["requests_within_slo"], found["goodput"]) == (0, 0.0)
    assert found["requests_per_second"] == pytest.approx(6 / found["seconds"])
    assert 0 < found["ttft_s"]["p50"] <= found["ttft_s"]["p95"] <= found["ttft_s"]["p99"] <= found["e2e_s"]["p99"]
    assert 0 < found["python_share"] < 1
    assert run(*line).code == 0


@pytest.mark.parametrize(("extra", "batches", "steps"), [
    (["--batching", "static"], [[2, 9, 7], [5, 3, 10]], 9 + 10),
    (["--batching", "dynamic", "--timeout", "0"], [[2, 9, 7], [5, 3, 10]], 9 + 10),
])
def test_batches_run_to_their_longest_answer(extra: list[str], batches: list[list[int]], steps: int,
                                             run: Callable[..., Ended], file: Callable[..., list[str]]) -> None:
    line = ["bench", *file(ITEMS), "--max-num-seqs", "3", *extra]
    found = json.loads(run(*line, "--json").out)
    assert (found["steps"], found["rows_per_step"]) == (steps, 3.0)
    assert found["slot_efficiency"] == [sum(lengths) / 3 / max(lengths) for lengths in batches]
    assert found["output_tokens"] == 36
    assert "python_share" not in found and "kv_blocks" not in found
    shown = run(*line).out
    assert "slot efficiency: rows somebody wanted" in shown and "60% to 67%" in shown


def test_the_slot_efficiency_is_the_modules_own(run: Callable[..., Ended], file: Callable[..., list[str]],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """An exercise is exchanged in its module: whoever copied the name would not see it."""
    monkeypatch.setattr(batching, "slot_efficiency", lambda lengths: 0.125)
    found = json.loads(run("bench", *file(ITEMS), "--batching", "static", "--json").out)
    assert found["slot_efficiency"] == [0.125]


def test_prefixes_and_conversations_hit(run: Callable[..., Ended]) -> None:
    line = ["bench", "--requests", "5", "--prefixes", "1", "--prefix-tokens", "32", "--prompt-tokens", "4",
            "--output-tokens", "3", "--sigma", "0", "--max-num-seqs", "1", "--json"]
    found = json.loads(run(*line).out)
    assert found["prefix_hit_rate"] == pytest.approx(4 * 32 / (5 * 36))
    assert json.loads(run(*line, "--prefix-index", "none").out)["prefix_hit_rate"] == 0
    turns = json.loads(run("bench", "--requests", "2", "--turns", "3", "--prompt-tokens", "8", "--output-tokens", "8",
                           "--sigma", "0", "--json").out)
    assert (turns["requests"], turns["prompt_tokens"]) == (6, 2 * (8 + 24 + 40))
    assert turns["prefix_hit_rate"] > 0


def test_little_memory_preempts_or_swaps(run: Callable[..., Ended]) -> None:
    line = ["bench", "--requests", "6", "--prompt-tokens", "20", "--output-tokens", "40", "--sigma", "0",
            "--max-num-seqs", "4", "--kv-cache-memory", f"{10 * 16 * 512}", "--json"]  # 10 blocks of the tiny model
    found = json.loads(run(*line).out)
    assert (found["kv_blocks"], found["output_tokens"]) == (10, 240)
    assert found["preemptions"] > 0
    assert json.loads(run(*line, "--swap-space", "1MB").out)["preemptions"] > 0


def test_what_can_never_run_is_listed_and_the_others_go_on(run: Callable[..., Ended],
                                                           file: Callable[..., list[str]]) -> None:
    items = [WorkItem(0.0, 90, 40), *ITEMS[:2], WorkItem(0.0, 3, 2, follows=0)]
    reason = "request has 90 prompt tokens and 40 new ones: expected at most 96, the context"
    ended = run("bench", *file(items), "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["requests"]) == (1, 2)
    assert found["refused"] == {"0": reason, "3": "item 0, which it follows, was refused"}
    shown = run("bench", *file(items[:3]), "--batching", "static")
    assert shown.code == 1
    assert "Refused: 1 that could never run" in shown.out and "item 0: request has 90" in shown.out
    alone = run("bench", *file(items[:1]))
    assert (alone.code, alone.err) == (1, "") and "TTFT" not in alone.out
    assert json.loads(run("bench", *file(items[:1]), "--batching", "static", "--json").out)["steps"] == 0


def test_a_saved_workload_is_the_same_again(run: Callable[..., Ended], tmp_path: Path) -> None:
    path = str(tmp_path / "made.jsonl")
    made = ["--requests", "4", "--prompt-tokens", "6", "--output-tokens", "5", "--rate", "500", "--burstiness", "2"]
    first = json.loads(run("bench", *made, "--save", path, "--json").out)
    again = json.loads(run("bench", "--workload", path, "--json").out)
    assert len(workload.load(path)) == 4
    assert [again[k] for k in ("prompt_tokens", "output_tokens")] == [first[k] for k in ("prompt_tokens",
                                                                                         "output_tokens")]
    assert json.loads(run("bench", *made, "--seed", "1", "--json").out)["prompt_tokens"] != first["prompt_tokens"]


def test_the_table_fits_80_columns(run: Callable[..., Ended], file: Callable[..., list[str]],
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("bench", *file(ITEMS), "--slo-ttft", "10", "--slo-tpot", "0.25").out
    for text in ("TTFT: to the first token", "TPOT: per token", "ITL: between", "p50", "p95", "p99", "requests/s",
                 "output tokens/s", "steps", "rows of a step", "preemptions", "Python's share", "prefix cache",
                 "6, 75, 36", "goodput: TTFT ≤ 10 s and TPOT ≤ 250 ms", "requests/s (6 of 6)",
                 "6 requests, all at once"):
        assert text in shown
    assert all(len(line) <= 80 for line in shown.splitlines()) and "…" not in shown


BAD_WORK = [
    ("--requests 0", "--requests is 0: expected 1 to 1,000,000"),
    ("--rate 0", "--rate is 0.0: expected requests a second"),
    ("--rate 1 --burstiness -1", "--burstiness is -1.0: expected 0 to 100"),
    ("--rate inf --burstiness 2", "--burstiness is 2.0 and --rate is inf: expected a rate"),
    ("--prompt-tokens 0", "--prompt-tokens is 0: expected 1 to 1,000,000,000"),
    ("--output-tokens 9 --max-output-tokens 8", "--max-output-tokens is 8: expected at least --output-tokens, 9"),
    ("--prompt-tokens 9 --max-prompt-tokens 8", "--max-prompt-tokens is 8: expected at least --prompt-tokens, 9"),
    ("--sigma -1", "--sigma is -1.0: expected 0 to 100"),
    ("--prefixes 2", "--prefixes is 2 and --prefix-tokens is 0: expected both"),
    ("--prefix-tokens 2", "--prefixes is 0 and --prefix-tokens is 2: expected both"),
    ("--turns 0", "--turns is 0: expected 1 to "),
    ("--think 1", "--think is 1.0 and --turns is 1: expected more turns"),
    ("--think -1 --turns 2", "--think is -1.0: expected seconds"),
    ("--seed x", "--seed is 'x': expected a valid integer"),
    ("--workload gone.jsonl", "--workload: cannot read gone.jsonl"),
    ("--workload gone.jsonl --turns 2", "--turns and --workload: expected one of the two"),
    ("--save gone/to.jsonl", "--save: cannot write gone/to.jsonl"),
    ("--slo-ttft 0", "--slo-ttft is 0.0: expected seconds, more than 0"),
    ("--slo-ttft inf", "--slo-ttft is inf: expected seconds, more than 0"),
    ("--slo-tpot nan", "--slo-tpot is nan: expected seconds, more than 0"),
    ("--max-num-seqs 0", "--max-num-seqs is 0: expected 1 to 100,000"),
    ("--max-num-seqs 4 --max-num-batched-tokens 3",
     "--max-num-seqs is 4: expected at most --max-num-batched-tokens, 3"),
    ("--policy lifo", "--policy is 'lifo': expected one of fcfs"),
    ("--prefix-index tree", "--prefix-index is 'tree': expected one of hash"),
    ("--kv-cache-memory much", "--kv-cache-memory is 'much': expected a size such as 512MB"),
    ("--using magic", "--using is 'magic': expected 'exercises'"),
]
BAD_BENCH = [
    ("--batching continous", "--batching is 'continous': expected one of continuous, static, dynamic"),
    ("--timeout 1", "--timeout and --batching continuous: expected --batching dynamic"),
    ("--batching dynamic --timeout -1", "--timeout is -1.0: expected seconds, 0 to 1e9"),
    ("--batching static --policy priority", "--policy and --batching static: expected --batching continuous"),
    ("--batching dynamic --swap-space 1MB", "--swap-space and --batching dynamic: expected --batching continuous"),
    ("--batching static --max-num-seqs 0", "--max-num-seqs is 0: expected 1 to 100,000"),
    ("--batching static --turns 2", "item 24 follows item 0 with --batching static"),
    ("--watch --json", "--watch and --json: expected one of the two"),
    ("--watch", "--watch draws on a terminal and stdout is none"),
    ("--swap-space 1XB", "--swap-space is '1XB': expected a size"),
    ("--swap-space 1", "--swap-space is 1: expected 0, or at least"),
    ("--kv-cache-memory 1", "--kv-cache-memory is 1: expected at least"),
    ("--kv-cache-dtype int3", "--kv-cache-dtype is 'int3': expected one of auto"),
    ("--attention sdp", "--attention is 'sdp': expected one of reference, sdpa"),
]
BAD_SIMULATE = [
    ("--model llama3-8b", "--model is 'llama3-8b': expected 'llama-3-8b'"),
    ("--hardware h20", "--hardware is 'h20': expected 'h200'"),
    ("--hardware t4", "llama-3-8b takes 16.1 GB in 16 bits, and NVIDIA T4 has 16 GB: expected less than 90%"),
    ("--bits 5", "--bits is 5: expected one of 4, 8, 16, 32"),
    ("--kv-bits 5", "--kv-bits is 5: expected one of 4, 8, 16, 32"),
    ("--replicas 0", "--replicas is 0: expected 1 to 1,000"),
    ("--route nearest", "--route is 'nearest': expected one of round-robin"),
    ("--route prefix-aware --prefix-index none", "--route is 'prefix-aware': expected replicas with a prefix index"),
    ("--route prefix-aware --margin -1", "--margin is -1: expected a whole number, at least 0"),
    ("--margin 5", "--margin and --route round-robin: expected --route prefix-aware"),
    ("--efficiency 1.5", "--efficiency is 1.5: expected a millionth to 1"),
    ("--overhead -1", "--overhead is -1.0: expected seconds"),
    ("--kv-cache-memory 500GB", "--kv-cache-memory is '500GB': expected 2.1 MB, one block, to 111 GB, what is free"),
]


@pytest.mark.parametrize(("line", "expected"), [
    *((f"{command} {line}", expected) for command in ("bench", "simulate") for line, expected in BAD_WORK),
    *((f"bench {line}", expected) for line, expected in BAD_BENCH),
    *((f"simulate {line}", expected) for line, expected in BAD_SIMULATE),
])
def test_bad_input_is_one_line_and_exit_2(line: str, expected: str, run: Callable[..., Ended],
                                          monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*line.split())
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended
    assert ended.err.startswith("minillm") and expected in ended.err, ended.err


def test_a_flag_group_is_a_commands_own_flags() -> None:
    """Defaults are the command's, and the command gets the group as one object."""
    seen = {}

    @flags.takes(work=flags.Work(requests=7))
    def command(work: flags.Work, other: int = 1) -> None:
        seen.update(work=work, other=other)

    parameters = inspect.signature(command).parameters
    assert parameters["requests"].default == 7 and "work" not in parameters
    command(**{name: p.default for name, p in parameters.items()} | {"seed": 3})
    assert seen == {"work": flags.Work(requests=7, seed=3), "other": 1}
    assert flags.changed(seen["work"], flags.Work()) == ["--requests", "--seed"]


def test_help_says_what_its_words_mean(run: Callable[..., Ended]) -> None:
    told = " ".join(run("simulate", "--help").out.split())
    for words in ("log-normal (most are short, a few very long)", "Copies of the model, each on a machine of its own",
                  "Which replica takes a request: round-robin (in turn)"):
        assert words in told
    assert "log-normal (most are short, a few very long)" in " ".join(run("bench", "--help").out.split())


def test_one_is_no_plural(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Ended]) -> None:
    assert [count_of(n, "token") for n in (0, 1, 2, 2048)] == ["0 tokens", "1 token", "2 tokens", "2,048 tokens"]
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    out = " ".join(run("bench", "--requests", "1", "--max-num-seqs", "1", "--prompt-tokens", "4", "--output-tokens",
                       "2", "--sigma", "0", "--max-num-batched-tokens", "1").out.split())
    assert "(cpu, 1 thread): 1 request, all at once" in out
    assert "at most 1 sequence and 1 token a step" in out


@pytest.mark.parametrize(("text", "expected"), [("512", 512), ("2kB", 2000), ("1.5 GB", 1_500_000_000),
                                                ("3MiB", 3 * 2**20), ("10b", 10)])
def test_sizes_are_read_as_they_are_printed(text: str, expected: int) -> None:
    assert bytes_of("--x", text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1MB", "1.GB", "1e9", "5 bytes", "nan", "9" * 400, "9" * 5000 + "MB"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--x is .*: expected a size"):
        bytes_of("--x", text)


# simulate


def test_a_simulation_counts_what_the_workload_asks(run: Callable[..., Ended], file: Callable[..., list[str]]) -> None:
    line = ["simulate", *file(ITEMS), "--max-num-seqs", "3", "--max-num-batched-tokens", "8"]
    ended = run(*line, "--json")
    found = json.loads(ended.out)
    assert (ended.code, ended.err, found["simulated"]) == (0, "", True)
    assert (found["requests"], found["output_tokens"]) == (6, 36)
    assert found["tokens_per_step"] * found["steps"] == pytest.approx(found["prompt_tokens"] + 36 - 6)
    measured = json.loads(run("bench", *line[1:], "--json").out)  # all at once, so no clock decides
    assert (found["steps"], found["rows_per_step"]) == (measured["steps"], measured["rows_per_step"])
    assert found == json.loads(run(*line, "--json").out)


def test_a_simulation_labels_its_figures(run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    line = ["simulate", "--requests", "30", "--replicas", "3", "--route", "prefix-aware", "--efficiency", "0.5",
            "--overhead", "0.002", "--slo-ttft", "0.5", "--prefixes", "2", "--prefix-tokens", "64"]
    shown = run(*line).out
    for text in ("llama-3-8b on 3 × NVIDIA H200 SXM, simulated", "/ 0.5 (efficiency) + 0.002 s (overhead)", "Left out",
                 "30 requests over", "of 30)", " each)", "busy"):
        assert text in " ".join(shown.split())
    assert shown.count("simulated") == 3 and "measured" not in shown and "…" not in shown
    assert all(len(row) <= 80 for row in shown.splitlines())
    found = json.loads(run(*line, "--json").out)
    assert sum(found["steps_of_replicas"]) == found["steps"] and len(found["steps_of_replicas"]) == 3


def test_more_bytes_overhead_and_less_efficiency_take_longer(run: Callable[..., Ended]) -> None:
    def tpot(*extra: str) -> float:
        return json.loads(run("simulate", "--requests", "1", "--sigma", "0", "--json", *extra).out)["tpot_s"]["p50"]

    base = tpot()
    assert tpot("--efficiency", "0.5") == pytest.approx(2 * base)
    assert tpot("--overhead", "0.01") == pytest.approx(base + 0.01)
    assert tpot("--bits", "32") > 1.9 * base > 1.9 * tpot("--kv-bits", "8")


def test_a_simulated_request_beyond_the_context_is_listed(run: Callable[..., Ended],
                                                          file: Callable[..., list[str]]) -> None:
    ended = run("simulate", *file([WorkItem(0.0, 9000, 2), WorkItem(0.0, 9, 2)]))
    assert ended.code == 1
    assert "item 0: request has 9000 prompt tokens" in ended.out and "expected at most 8192" in " ".join(
        ended.out.split())
    alone = run("simulate", *file([WorkItem(0.0, 9000, 2)]), "--json")
    assert (alone.code, json.loads(alone.out)["requests"]) == (1, 0)


# --watch


def text_of(board: watch.Board, width: int = 80, height: int = 24) -> list[str]:
    out = Console(file=io.StringIO(), width=width)
    out.print(board.view(height))
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def step(number: int, *rows: tuple[int, int, int], preempted: tuple[int, ...] = (), held: int = 0, idle: int = 0,
         waiting: int = 0) -> StepRecord:
    return StepRecord(number, number + 0.5, rows, preempted, waiting, 0.4, held, idle)


def test_the_picture_of_some_records() -> None:
    board = watch.Board(3, 40)
    board.add(1, 0, 6, 4)
    board.add(2, 1, 30, 9)
    assert text_of(board)[1:4] == ["   0        -", "   1        -", "   2        -"]
    board.take(step(0, (1, 0, 6), (2, 0, 10), held=10, idle=5, waiting=2))
    board.take(step(1, (1, 6, 1), (2, 10, 10), held=20, idle=10, waiting=1))
    assert text_of(board) == [
        "slot  request  phase   tokens",
        "   0        0  decode  ████████████············ 2 of 4 out",
        "   1        1  prompt  ████████████████········ 20 of 30 computed",
        "   2        -",
        "blocks                 ████████████▒▒▒▒▒▒······ 20 held, 10 idle, 10 free",
        "waiting 1   ended 0   preempted 0   step 2, 500 ms   1.3 tokens/s"]


def test_a_sequence_leaves_its_slot_when_it_ends_or_must() -> None:
    board = watch.Board(2, 8)
    board.add(1, 0, 3, 1)
    board.add(2, 1, 4, 5)
    board.take(step(0, (1, 0, 3), (2, 0, 4)))
    assert (board.slots, board.ended) == ([None, 2], 1)
    board.add(3, 2, 2, 8)
    board.take(step(1, (2, 4, 1), (3, 0, 2)))
    assert board.slots == [3, 2]
    board.take(step(2, (3, 2, 1), preempted=(2,), waiting=1))
    assert (board.slots, board.preemptions) == ([3, None], 1)
    board.take(step(3, (3, 3, 1), (2, 0, 4)))  # four of the prompt and two made: six to compute again
    assert board.slots == [3, 2] and board.seen[2].phase == "again"
    assert "   1        1  again   ████████████████········ 4 of 6 computed" in text_of(board)
    board.take(step(4, (3, 4, 1)))  # no budget for it: it keeps its slot
    assert board.slots == [3, 2]
    board.take(step(5, (3, 5, 1), (2, 4, 2)))
    assert (board.seen[2].phase, board.seen[2].made) == ("decode", 3)


def test_rows_of_a_fixed_batch_stay_until_all_have_ended() -> None:
    board = watch.Board(2, 0, fixed=True)
    for seq, output in ((1, 1), (2, 3), (3, 1)):
        board.add(seq, seq - 1, 2, output)
    board.take(step(0, (1, 0, 2), (2, 0, 2)))
    board.take(step(1, (1, 2, 1), (2, 2, 1)))
    assert text_of(board)[1:3] == ["   0        0  ended   ████████████████████████ 1 of 1 out",
                                   "   1        1  decode  ████████████████········ 2 of 3 out"]
    assert not any(line.startswith("blocks") for line in text_of(board))
    assert board.tokens_per_second == pytest.approx(3 / 1.5)  # what an ended row makes is thrown away
    board.take(step(2, (1, 3, 1), (2, 3, 1)))
    board.take(step(3, (3, 0, 2)))
    assert (board.slots, board.ended) == ([3, None], 3)


def test_many_slots_fit_a_low_terminal() -> None:
    board = watch.Board(64, 100)
    for seq in range(40):
        board.add(seq, seq, 5, 9)
    board.take(step(0, *((seq, 0, 5) for seq in range(40)), held=100))
    lines = text_of(board, height=12)
    assert len(lines) == 11
    assert lines[8] == "      and 57 slots more, 33 of them busy"


@pytest.mark.parametrize(("parts", "of", "expected"), [
    ([(0, "█"), (0, "▒")], 10, "········"), ([(1, "█"), (1, "▒")], 1000, "█▒······"),
    ([(5, "█"), (5, "▒")], 10, "████▒▒▒▒"), ([(999, "█"), (1, "▒")], 1000, "███████▒"), ([(3, "█")], 4, "██████··")])
def test_bars(parts: list[tuple[int, str]], of: int, expected: str) -> None:
    assert watch.bar(parts, of, 8) == expected


def test_watching_a_run_ends_where_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """All records of a run with chunks and preemptions: nothing is left in a slot, every request has ended."""
    boards = []
    monkeypatch.setattr(bench, "Board", lambda *arguments: boards.append(watch.Board(*arguments)) or boards[-1])
    monkeypatch.setattr(bench, "console", lambda: Console(file=io.StringIO(), force_terminal=True, width=80, height=20))
    monkeypatch.setattr(watch, "PERIOD", 0.0)
    llm = tiny_llm(max_num_seqs=4, max_num_batched_tokens=16, kv_cache_memory_bytes=10 * 16 * 512)
    items = [WorkItem(0.0, 20 + i, 40 - 3 * i) for i in range(6)]
    found = bench.run_on(llm, items, 0, "continuous", 4, None, True)
    (board,) = boards
    assert board.preemptions == sum(len(record.preempted) for record in found.records) > 0
    assert (board.slots, board.ended, board.steps) == ([None] * 4, 6, len(found.records))
    assert [board.seen[seq].made for seq in sorted(board.seen)] == [item.output_tokens for item in items]
    assert bench.run_on(llm, items, 0, "static", 4, None, True).refused == {}
    assert (boards[-1].ended, boards[-1].fixed) == (6, True)


# on the real model


def test_the_real_model_serves_a_workload(smollm2: object, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bench", "--requests", "3", "--prompt-tokens", "12", "--output-tokens", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["model"], found["requests"], found["refused"]) == (0, "smollm2", 3, {})
    items = flags.items_of(flags.Work(requests=3, prompt_tokens=12, output_tokens=4), bench.WORK)
    assert found["output_tokens"] == sum(item.output_tokens for item in items)


def test_the_default_of_simulate_is_an_8b_model_on_an_h200() -> None:
    assert simulate.WORK.requests > bench.WORK.requests
    assert simulate.LIMITS.max_num_seqs == 256
