"""The command line: what each command prints and returns. By subprocess where the process itself is the subject."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from typer.main import get_command

from minillm.cli import app, engine, main
from minillm.measure.hardware import Machine

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]
THIS = Machine(name="Test Processor", device="cpu", threads=2, memory_bytes=16e9, copy_bandwidth=10e9,
               read_bandwidth=20e9, peak_flops={"float32": 100e9, "bfloat16": 200e9, "float16": 50e9},
               torch_version="2.13.0", date="2026-01-01")


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run a command line in this process, with `typed` on stdin and a machine that needs no measuring."""
    import io

    monkeypatch.setattr("minillm.measure.hardware.measure_machine", lambda device=None, refresh=False: THIS)

    def run_line(*arguments: str, typed: str = "") -> Ended:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code = main(arguments)
        return Ended(code, *capsys.readouterr())

    return run_line


def spawn(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "minillm", *arguments], capture_output=True, text=True, timeout=120,
                          **options)


def test_help_lists_every_command_and_needs_no_torch() -> None:
    code = ("import sys; from minillm.cli import main; code = main(['--help']); "
            "sys.exit(code or 100 * any(m in sys.modules for m in ('torch', 'numpy', 'matplotlib', 'tokenizers')))")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    for name in ("tour", "fetch", "generate", "chat", "plan", "measure", "doctor", "check", "hint", "solution",
                 "progress", "reset"):
        assert f"\n  {name} " in ended.stdout


def test_a_datasheet_plan_needs_no_torch() -> None:
    code = ("import sys; from minillm.cli import main; "
            "code = main(['plan', '--model', 'llama-2-7b', '--hardware', 'h100']); "
            "sys.exit(code or 100 * ('torch' in sys.modules))")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_module_is_the_command() -> None:
    ended = spawn("--version")
    assert ended.returncode == 0
    assert ended.stdout.count(".") == 2
    wrong = spawn("genrate")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "minillm: no command 'genrate': expected 'generate'\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-m", "minillm", "plan", "--hardware", "h100", "--json"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_that_parses(name: str, run: Callable[..., Ended]) -> None:
    ended = run(name, "--help")
    assert ended.code == 0
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    after = re.split(r"\n  Examples?:\n", ended.out)
    assert len(after) == 2, f"minillm {name} --help shows no example"
    examples = after[1].split("\n\n")[0].splitlines()
    command = get_command(app).commands[name]
    for example in examples:
        words = shlex.split(example[example.index("minillm"):])
        assert words[:2] == ["minillm", name]
        command.make_context(name, words[2:])  # raises for a flag or a value that is none


def test_no_arguments_show_the_help(run: Callable[..., Ended]) -> None:
    assert run() == run("--help")


@pytest.mark.parametrize(("line", "expected"), [
    ("genrate hello", "no command 'genrate': expected 'generate'"),
    ("xyzzy", "no command 'xyzzy': expected one of tour, fetch"),
    ("generate hello --max-token 3", "no option '--max-token': expected '--max-tokens'"),
    ("generate hello --zzz", "no option '--zzz': expected one of"),
    ("generate hello --n 2", "no option '--n': expected one of"),
    ("generate hello --temp 1", "no option '--temp': expected '--temperature'\n"),
    ("generate hello --models x", "no option '--models': expected '--model'\n"),
    ("bench --slo 1", "no option '--slo': expected '--slo-ttft' or '--slo-tpot'\n"),
    ("bench --input-len 1", "no option '--input-len': expected one of"),
    ("simulate --device cpu", "no option '--device': expected one of"),
    ("check --step 1", "no option '--step': expected one of"),
    ("plan --hardware 1e300", "--hardware is '1e300': expected one of this"),
    ("generate", "missing argument"),
    ("generate hello there", "unexpected extra argument"),
    ("generate hello --max-tokens many", "--max-tokens is 'many': expected a valid integer"),
    ("generate hello --model", "--model"),
    ("generate hello --using magic", "--using is 'magic': expected 'exercises'"),
    ("plan --model llama2-7b", "--model is 'llama2-7b': expected 'llama-2-7b'"),
    ("plan --hardware h10", "--hardware is 'h10': expected 'h100'"),
    ("plan --hardware h100 --bits 5", "--bits is 5: expected one of 4, 8, 16, 32"),
    ("plan --hardware h100 --batch 0", "--batch is 0: expected a whole number, 1 to 1000000"),
    ("plan --hardware h100 --context 100000", "--context is 100000: expected a whole number, 1 to 8192"),
    ("plan --hardware h100 --mean-tokens 9000", "--mean-tokens is 9000: expected a whole number, 1 to 4096"),
    ("generate hello --kv-cache-dtype int3", "--kv-cache-dtype is 'int3': expected one of auto, int8"),
    ("plan --hardware h100 --price -1", "--price is -1.0: expected dollars per hour"),
    ("measure --device tpu", "--device is 'tpu': expected 'cpu' or 'cuda'"),
    ("fetch smolm2", "unknown model 'smolm2': expected smollm2"),
    ("generate hello --model smolm2", "--model is 'smolm2': expected smollm2"),
])
def test_bad_input_is_one_line_and_exit_2(line: str, expected: str, run: Callable[..., Ended]) -> None:
    ended = run(*line.split())
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.count("\n") == 1, ended.err
    assert ended.err.startswith("minillm")
    assert expected in ended.err


# plan, measure, doctor


def test_plan_of_a_7b_model(run: Callable[..., Ended]) -> None:
    line = "plan --model llama-2-7b --hardware h100 --batch 8 --price 2.5".split()
    plan = json.loads(run(*line, "--json").out)
    assert plan["weight_bytes"] == pytest.approx(13.5e9, rel=0.01)
    assert plan["kv_bytes_per_token"] == 512 * 1024
    assert [row["kept_as"] for row in plan["capacities"]] == ["16 bits", "int8 or fp8", "int4", "int4-kivi"]
    assert plan["capacities"][0]["contiguous"] == plan["requests_that_fit"] < plan["capacities"][0]["paged"]
    assert (plan["ttft_bound"], plan["tpot_bound"]) == ("compute", "bandwidth")
    assert plan["dollars_per_million_tokens"] == pytest.approx(2.5 / 3600 * plan["tpot_s"] / 8 * 1e6)
    assert json.loads(run(*line, "--bits", "4", "--json").out)["weight_bytes"] == pytest.approx(3.4e9, rel=0.02)
    shown = run(*line)
    assert shown.code == 0
    for text in ("13.5 GB of 80 GB", "524 kB", "compute", "bandwidth", "per million output tokens", "27"):
        assert text in shown.out
    assert all(len(row) <= 80 for row in shown.out.splitlines())


def test_plan_that_does_not_fit_exits_1(run: Callable[..., Ended]) -> None:
    ended = run("plan", "--model", "llama-2-7b", "--hardware", "t4")
    assert ended.code == 1
    assert "Does not fit" in ended.out


def test_plan_on_this_machine_and_by_hub_id(run: Callable[..., Ended]) -> None:
    plan = json.loads(run("plan", "--model", "Qwen/Qwen3-0.6B", "--hardware", "this", "--json").out)
    assert (plan["model"], plan["hardware"]) == ("qwen3-0.6b", THIS.name)


def test_measure_prints_bandwidths_peaks_and_ridges(run: Callable[..., Ended]) -> None:
    shown = run("measure").out
    for text in (THIS.name, "20.0", "10.0", "float32", "bfloat16", "5.0"):
        assert text in shown
    figures = json.loads(run("measure", "--json").out)
    assert figures["read_bandwidth"] == 20e9
    assert figures["ridge_flop_per_byte"] == {"float32": 5.0, "bfloat16": 10.0, "float16": 2.5}


def test_doctor_names_what_is_missing_and_the_command_that_mends_it(
        run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "none"))
    ended = run("doctor", "--json")
    report = json.loads(ended.out)
    findings = {f["name"]: f for f in report["findings"]}
    assert (ended.code, report["ok"]) == (1, False)
    assert findings["smollm2"] == {"name": "smollm2", "status": "missing", "found": "not fetched",
                                   "fix": "minillm fetch smollm2"}
    assert findings["Python"]["status"] == findings["torch"]["status"] == findings["packages"]["status"] == "ok"
    assert "packed" in findings["weights"]["found"]
    assert not (tmp_path / "none").exists()
    shown = run("doctor")
    assert shown.code == 1
    assert "smollm2: minillm fetch smollm2" in shown.out


# generate and chat, on a tiny random model in a hub folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Llama of two layers: one token a byte, a context of 256, a chat template of one line a message."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from minillm.model import config_files
    from minillm.model.transformer import Transformer

    folder = tmp_path_factory.mktemp("tiny")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "chat_template": template}))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 257, "hidden_size": 32,
              "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False, "eos_token_id": 256}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = Transformer(config_files.from_hf(config))
    weights = {name: torch.randn(p.shape) * (1 if p.dim() == 1 else 0.3) for name, p in model.named_parameters()}
    weights["lm_head.weight"][256] = 0  # it seldom ends by itself
    names = {name: name if name.startswith("lm_head") else f"model.{name}" for name in weights}
    save_file({names[name]: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    return str(folder)


def test_generate_prints_the_text_and_its_timing_apart(tiny: str, run: Callable[..., Ended]) -> None:
    line = ["generate", "hello", "--model", tiny, "--max-tokens", "12"]
    streamed = run(*line)
    assert streamed.code == 0
    assert streamed.err.startswith("[12 tokens from a prompt of 12: TTFT ")
    assert "TPOT" in streamed.err
    assert "tokens/s" in streamed.err
    assert run(*line).out == run(*line, "--no-stream").out == streamed.out  # greedy: every time the same
    plain = json.loads(run(*line, "--json").out)
    assert plain["text"] + "\n" == streamed.out
    assert (plain["output_tokens"], plain["prompt_tokens"], plain["finish_reason"]) == (12, 12, "length")
    assert len(plain["token_ids"]) == 12
    assert plain["tokens_per_second"] == pytest.approx(1 / plain["tpot_s"])


def test_generate_raw_and_from_stdin(tiny: str, run: Callable[..., Ended]) -> None:
    line = ["--model", tiny, "--max-tokens", "3", "--json"]
    assert json.loads(run("generate", "hello", "--raw", *line).out)["prompt_tokens"] == 5
    assert run("generate", "-", "--raw", *line, typed="hello").out.split('"ttft_s"')[0] == \
        run("generate", "hello", "--raw", *line).out.split('"ttft_s"')[0]


def test_generate_sampling_flags_arrive(tiny: str, run: Callable[..., Ended]) -> None:
    line = ["generate", "hello", "--model", tiny, "--max-tokens", "12", "--json"]

    def ids(*flags: str) -> list[int]:
        return json.loads(run(*line, *flags).out)["token_ids"]

    greedy, hot = ids(), ["--temperature", "5"]
    assert ids(*hot, "--seed", "1") == ids(*hot, "--seed", "1") != ids(*hot, "--seed", "2")
    for narrow in (["--top-k", "1"], ["--top-p", "0.0001"], ["--min-p", "1"]):
        assert ids(*hot, *narrow, "--seed", "1") == greedy
    assert ids("--attention", "reference") == greedy
    first = run("generate", "hello", "--model", tiny, "--max-tokens", "12").out[:-1]
    stopped = json.loads(run(*line, "--stop", first[3:5]).out)
    assert (stopped["text"], stopped["stop_reason"]) == (first[:3], first[3:5])


@pytest.mark.parametrize(("flags", "expected"), [
    (["--temperature", "-1"], "--temperature is -1.0: expected 0"),
    (["--top-p", "0"], "--top-p is 0.0: expected more than 0, at most 1"),
    (["--top-p", "1.5"], "--top-p is 1.5"),
    (["--min-p", "2"], "--min-p is 2.0"),
    (["--max-tokens", "0"], "--max-tokens is 0: expected at least 1\n"),
    (["--dtype", "int8"], "--dtype is 'int8': expected"),
    (["--device", "tpu"], "--device is 'tpu': expected 'cpu' or 'cuda'"),
    (["--attention", "sdp"], "--attention is 'sdp': expected one of reference, sdpa"),
])
def test_generate_refuses_a_bad_value(flags: list[str], expected: str, tiny: str, run: Callable[..., Ended]) -> None:
    ended = run("generate", "hello", "--model", tiny, *flags)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert expected in ended.err


@pytest.mark.parametrize(("prompt", "expected"), [("", "prompt is empty"), ("x" * 300, "expected at most 255")])
def test_generate_refuses_a_bad_prompt(prompt: str, expected: str, tiny: str, run: Callable[..., Ended]) -> None:
    ended = run("generate", prompt, "--raw", "--model", tiny)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert expected in ended.err


def test_generate_refuses_a_broken_model(tiny: str, tmp_path: Path, run: Callable[..., Ended]) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03")
    (tmp_path / "note.txt").write_text("no model")
    (tmp_path / "empty").mkdir()
    for name in ("cut.gguf", "note.txt", "empty", "gone.gguf"):
        ended = run("generate", "hello", "--model", str(tmp_path / name))
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended.err
        assert name in ended.err
    ended = run("plan", "--model", str(tmp_path / "empty"), "--hardware", "h100")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert run("plan", "--model", tiny, "--hardware", "h100").code == 0


def test_a_model_without_a_chat_template_needs_raw(tiny: str, tmp_path: Path, run: Callable[..., Ended]) -> None:
    import shutil

    base = shutil.copytree(tiny, tmp_path / "base")
    (base / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    ended = run("generate", "hello", "--model", str(base))
    assert ended.code == 2
    assert "has no chat template: expected a chat model, or generate --raw" in ended.err
    assert run("chat", "--model", str(base)).code == 2
    assert run("generate", "hello", "--model", str(base), "--raw", "--max-tokens", "2").code == 0


def test_chat_answers_each_line_and_says_how_fast(tiny: str, run: Callable[..., Ended]) -> None:
    line = ["chat", "--model", tiny, "--max-tokens", "5"]
    ended = run(*line, typed="hello\n\nagain\n/exit\nnever\n")
    assert ended.code == 0
    assert ended.err.count("tokens/s]") + ended.err.count("tokens/s, cut") == 2
    lone = run("generate", "hello", "--model", tiny, "--max-tokens", "5").out
    assert ended.out.startswith(lone)
    # what came before is part of the second prompt, until /reset
    assert ended.out != run(*line, typed="hello\n/reset\nagain\n").out
    assert run(*line, typed="hello\n/reset\nhello\n").out == lone * 2
    system = run(*line, "--system", "Be brief.", typed="hello\n")
    assert "from a prompt of 30:" in system.err


def test_chat_drops_the_oldest_turns_and_refuses_what_can_never_fit(tiny: str, run: Callable[..., Ended]) -> None:
    turns = [f"{i} " + "x" * 60 for i in range(5)]
    ended = run("chat", "--model", tiny, "--max-tokens", "5", typed="\n".join([*turns, "y" * 300, "short"]))
    assert ended.code == 0
    assert "outgrew the context of 256 tokens" in ended.err
    assert ended.err.count("expected at most 255") == 1  # the line of 300 letters
    assert ended.err.count("from a prompt of") == 6  # every other one is answered


def test_an_interrupted_chat_is_quiet(tiny: str) -> None:
    process = subprocess.Popen([sys.executable, "-m", "minillm", "chat", "--model", tiny], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               # a shell starts its background jobs deaf to Ctrl-C, and tests may run in one
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    assert "/exit" in process.stderr.readline()  # loaded, and waiting for a line
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.stderr.read() == ""
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()


# --using exercises: that the reader's functions run, and what is said; which ones pass is course's to test


@pytest.fixture
def exchange_greedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Make the reader's answer to exercise 1.3 a `greedy` of this source, lying in their file."""
    from minillm.course import catalogue, exchange, workspace
    from minillm.decoding import sampling

    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    place = workspace.Workspace(tmp_path)
    monkeypatch.setattr(workspace, "find", lambda: place)

    def use(source: str) -> None:
        names: dict = {"calls": []}
        exec(compile(source, str(place.exercises / "step1_mine.py"), "exec"), names)

        def exchanged(ids: object = None, place: object = None) -> exchange.Report:
            report = exchange.Report(used=[catalogue.find("1.3")])
            report.replaced.append((sampling, "greedy", sampling.greedy))
            sampling.greedy = names["greedy"]
            return report

        monkeypatch.setattr(exchange, "exchange", exchanged)

    return use


def test_using_exercises_runs_the_readers_function_and_shows_both_speeds(
        exchange_greedy: Callable[[str], None], tiny: str, run: Callable[..., Ended]) -> None:
    from minillm.course import progress, workspace
    from minillm.decoding import sampling

    ours = sampling.greedy
    exchange_greedy("def greedy(logits):\n    return logits.argmin(-1)\n")
    line = ["generate", "hello", "--model", tiny, "--max-tokens", "6"]
    theirs = run(*line, "--using", "exercises")
    assert theirs.code == 0
    assert "yours: 1.3 greedy" in theirs.err
    assert re.search(r"yours [\d.]+ tokens/s, ours [\d.]+ tokens/s", theirs.err)
    assert list(progress.load(workspace.find()).speeds) == ["step 1"]
    assert sampling.greedy is ours
    assert run(*line).out != theirs.out
    assert run("chat", *line[2:], "--using", "exercises", typed="hello\n").out == theirs.out


def test_an_error_in_the_readers_function_names_their_line(
        exchange_greedy: Callable[[str], None], tiny: str, run: Callable[..., Ended]) -> None:
    exchange_greedy("def greedy(logits):\n    return logits.largest()\n")
    ended = run("generate", "hello", "--model", tiny, "--using", "exercises")
    assert ended.code == 2
    assert "minillm: mine/exercises/step1_mine.py, line 2 raised AttributeError:" in ended.err
    assert run("generate", "hello", "--model", tiny, "--max-tokens", "2").code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_interpreted_kernels_are_not_timed(exchange_greedy: Callable[[str], None], monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    loads = []
    monkeypatch.setattr(engine, "load", lambda *given, **options: loads.append(given[3]) or "a model")
    monkeypatch.setattr(engine, "speed", lambda llm: 10.0)
    exchange_greedy("def greedy(logits):\n    return logits.argmax(-1)\n")
    for attention, told in (("triton", "speeds are not measured: --attention triton is interpreted here"),
                            ("sdpa", "yours 10.0 tokens/s, ours 10.0 tokens/s")):
        with engine.loaded("smollm2", "auto", None, attention, "exercises") as llm:
            assert llm == "a model"
        assert told in capsys.readouterr().err
    assert loads == ["triton", "sdpa", "sdpa"]


def test_triton_without_a_gpu_is_refused_before_a_model_is_fetched(run: Callable[..., Ended],
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    fetched = []
    monkeypatch.setattr(engine, "ensure", fetched.append)
    for line in ("generate hello", "chat", "bench", "generate hello --using exercises"):
        ended = run(*line.split(), "--device", "cpu", "--attention", "triton")
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert "--attention is 'triton' on cpu: expected a GPU (or TRITON_INTERPRET=1" in ended.err
    assert fetched == []


# on the real model


def test_the_real_model_answers(smollm2: object, run: Callable[..., Ended]) -> None:
    ended = run("generate", "What is the capital of France?", "--max-tokens", "16")
    assert (ended.code, ended.out) == (0, "The capital of France is Paris.\n")


def test_the_tour_answers_predicts_and_measures(smollm2: object, run: Callable[..., Ended], tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    from minillm.cli import tour
    from minillm.llm import LLM

    monkeypatch.setattr(tour, "PROMPT_LENGTHS", (16, 64))
    monkeypatch.setattr(tour, "ROUNDS", 2)
    monkeypatch.chdir(tmp_path)
    outputs, generate = [], LLM.generate
    monkeypatch.setattr(LLM, "generate", lambda *given: outputs.extend(got := generate(*given)) or got)
    shown = run("tour")
    assert shown.code == 0
    assert len(outputs) == 5 and not any(o.num_cached_tokens for o in outputs)  # no prompt starts from the one before
    for text in ("> What is the capital of France?", "The capital of France is Paris.", THIS.name, "TTFT predicted",
                 "TPOT predicted", "jupyter lab", "minillm check 0.1"):
        assert text in shown.out
    assert "activate" not in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    figures = json.loads((ended := run("tour", "--json")).out)
    assert ended.code == 0
    assert [row["prompt_tokens"] for row in figures["rows"]] == [16, 64]
    # predictions are counts over peaks: the same on every machine
    assert figures["rows"][1]["ttft_predicted_s"] > figures["rows"][0]["ttft_predicted_s"]
    assert figures["rows"][0]["tpot_predicted_s"] == pytest.approx(4 * 134.5e6 / 20e9, rel=0.01)
