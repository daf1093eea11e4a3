"""Read a GGUF file: its metadata, its configuration, and its weights one tensor at a time.

A GGUF file is a header (counts), a list of typed key-value pairs, a list of tensor descriptions, then the tensors'
bytes. The header is parsed here, in one pass: `gguf.GGUFReader` builds several numpy views for each of the 98,000 token
and merge strings and takes seconds over what takes 0.1 s here. The weights are dequantized by the `gguf` library.

Three things differ from a hub checkpoint and are undone here. Tensors have other names. Files of the llama and mistral
architectures store the rows of Q and K reordered for the interleaved RoPE of llama.cpp, where ours is the hub's
half-split RoPE. And llama3 RoPE scaling is a tensor, `rope_freqs.weight`.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import QuantError, dequantize

from minillm.model import config_files
from minillm.model.config import ConfigError, ModelConfig

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# value type number -> struct format; 8 is a string, 9 an array
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
PERMUTED = ("llama", "mistral")

TOP_NAMES = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFError(ValueError):
    """A file that is truncated, foreign, or holds a tensor that this package cannot use."""


@dataclass(frozen=True)
class GGUFTensor:
    """Where one tensor's bytes lie; `shape` as torch has it, outermost dimension first."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    size: int


@dataclass(frozen=True)
class GGUFFile:
    """An opened GGUF file: nothing of its weights is in memory until `tensors` is iterated."""

    path: Path
    metadata: dict[str, Any]
    config: ModelConfig
    entries: dict[str, GGUFTensor]  # by hub-style name

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight, by hub-style name."""
        return {name: entry.shape for name, entry in self.entries.items()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(hub-style name, float32 tensor on the CPU), dequantized one at a time, Q and K in half-split order."""
        with open(self.path, "rb") as file:
            for name, entry in self.entries.items():
                weight = torch.from_numpy(_read_tensor(file, entry, self.path))
                heads = _permuted_heads(name, self.config)
                yield name, unpermute(weight, heads) if heads else weight


def read_gguf(path: str | Path) -> GGUFFile:
    """Open `path`, check that every tensor is inside the file and can be dequantized. Raises GGUFError, ConfigError."""
    path = Path(path)
    size = path.stat().st_size if path.is_file() else -1
    if size < 0:
        raise GGUFError(f"{path} is not a file: expected a GGUF file")
    with open(path, "rb") as file:
        magic = file.read(4)
        if magic != MAGIC:
            raise GGUFError(f"{path} begins with {magic!r}: expected a GGUF file, which begins with {MAGIC!r}")
        if size < 24:
            raise GGUFError(f"{path} is {size} bytes: expected at least the 24 of a GGUF header, so it is truncated")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            metadata, found = _Header(data, path).read()
    entries, divisors = {}, None
    for entry in found:
        _check_tensor(entry, size, path)
        if entry.name == "rope_freqs.weight":
            divisors = _read_divisors(entry, path)
        elif entries.setdefault(hub_name(entry.name, path), entry) is not entry:
            raise GGUFError(f"{path} holds the tensor {entry.name!r} twice: expected it once")
    return GGUFFile(path, metadata, _config(metadata, entries, divisors, path), entries)


def hub_name(name: str, path: Path | str = "GGUF file") -> str:
    """`blk.3.attn_q.weight` -> `layers.3.self_attn.q_proj.weight`. Raises GGUFError on a name that it does not know."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if not match or match[2] not in BLOCK_NAMES:
        raise GGUFError(f"{path} holds the tensor {name!r}: expected only those of a dense Llama, Mistral or Qwen")
    return f"layers.{match[1]}.{BLOCK_NAMES[match[2]]}.{match[3]}"


def unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """[heads*D, ...] with each head's rows as x0 y0 x1 y1 … -> the same rows as x0 x1 … y0 y1 ….

    (x_i, y_i) is the pair that RoPE rotates by frequency i: llama.cpp keeps the two side by side, the hub D/2 apart.
    """
    rows = weight.shape[0]
    pairs = weight.view(heads, rows // heads // 2, 2, *weight.shape[1:])  # [H, D/2, 2, ...]
    return pairs.transpose(1, 2).reshape(weight.shape)  # [H, 2, D/2, ...] -> [H*D, ...]


class _Header:
    """A cursor over the header; every read is checked against the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 4
        self.end = len(data)

    def read(self) -> tuple[dict[str, Any], list[GGUFTensor]]:
        version = self.scalar("<I")
        if version not in VERSIONS:
            hint = ", which is what a big-endian file looks like" if version >= 1 << 16 else ""
            raise GGUFError(f"{self.path} has GGUF version {version}{hint}: expected one of {VERSIONS}, little-endian")
        tensor_count, pair_count = self.scalar("<Q"), self.scalar("<Q")
        metadata = {}
        for _ in range(pair_count):
            key = self.string()
            metadata[key] = self.value(self.scalar("<I"), key)
        raw = [self.tensor() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise GGUFError(f"{self.path} general.alignment is {alignment!r}: expected a positive integer")
        start = math.ceil(self.at / alignment) * alignment
        return metadata, [replace(entry, offset=start + entry.offset) for entry in raw]

    def take(self, count: int) -> int:
        start = self.at
        if count > self.end - start:
            raise GGUFError(f"{self.path} ends inside its header, at byte {self.end}: expected {count} bytes at "
                            f"byte {start}, so it is truncated or corrupt")
        self.at = start + count
        return start

    def scalar(self, form: str) -> Any:
        return struct.unpack_from(form, self.data, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        start = self.take(self.scalar("<Q"))
        try:
            return str(self.data[start:self.at], "utf-8")
        except UnicodeDecodeError:
            raise GGUFError(f"{self.path} holds text at byte {start} that is not UTF-8: it is corrupt") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.string()
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind != ARRAY:
            raise GGUFError(f"{self.path} key {key!r} has value type {kind}: expected a type from 0 to 12")
        item, count = self.scalar("<I"), self.scalar("<Q")
        if item == STRING:
            return [self.string() for _ in range(count)]
        if item not in SCALARS:
            raise GGUFError(f"{self.path} key {key!r} is an array of type {item}: expected strings or numbers")
        form = SCALARS[item]
        start = self.take(count * struct.calcsize(form))
        return list(struct.unpack_from(f"<{count}{form[1]}", self.data, start))

    def tensor(self) -> GGUFTensor:
        name, dimensions = self.string(), self.scalar("<I")
        if dimensions > 4:
            raise GGUFError(f"{self.path} tensor {name!r} has {dimensions} dimensions: expected at most 4")
        shape = tuple(reversed([self.scalar("<Q") for _ in range(dimensions)]))  # the file lists the innermost first
        number, offset = self.scalar("<I"), self.scalar("<Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise GGUFError(f"{self.path} tensor {name!r} has type number {number}: expected one that gguf "
                            f"knows") from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if not shape or shape[-1] % block:
            raise GGUFError(f"{self.path} tensor {name!r} has shape {shape}: expected rows that are a multiple of the "
                            f"{block} values of a {kind.name} block")
        return GGUFTensor(name, shape, kind, offset, math.prod(shape) // block * block_bytes)


def _check_tensor(entry: GGUFTensor, file_size: int, path: Path) -> None:
    if entry.offset + entry.size > file_size:
        raise GGUFError(f"{path} is {file_size} bytes: expected at least {entry.offset + entry.size}, the end of "
                        f"tensor {entry.name!r}, so it is truncated")
    try:  # on one block: does the library know how?
        dequantize(np.zeros((1, GGML_QUANT_SIZES[entry.kind][1]), np.uint8), entry.kind)
    except NotImplementedError:
        raise GGUFError(f"{path} tensor {entry.name!r} is {entry.kind.name}: expected a type that gguf can "
                        f"dequantize") from None


def _read_tensor(file: Any, entry: GGUFTensor, path: Path) -> np.ndarray:
    """float32, C-contiguous and writable, in the tensor's shape."""
    file.seek(entry.offset)
    data = np.fromfile(file, np.uint8, entry.size)
    if data.size != entry.size:
        raise GGUFError(f"{path} gave {data.size} bytes of tensor {entry.name!r}: expected {entry.size}")
    block, block_bytes = GGML_QUANT_SIZES[entry.kind]
    rows = data.reshape(-1, entry.shape[-1] // block * block_bytes)  # one row of values a row
    try:
        with np.errstate(all="ignore"):  # a block's unused scale may overflow; the value is then what the file says
            values = dequantize(rows, entry.kind)
    except (QuantError, ValueError) as error:
        raise GGUFError(f"{path} tensor {entry.name!r} ({entry.kind.name}) cannot be dequantized: {error}") from error
    return np.ascontiguousarray(values, np.float32).reshape(entry.shape)


def _read_divisors(entry: GGUFTensor, path: Path) -> tuple[float, ...]:
    with open(path, "rb") as file:
        return tuple(_read_tensor(file, entry, path).ravel().tolist())


def _config(metadata: dict[str, Any], entries: dict[str, GGUFTensor], divisors: tuple[float, ...] | None,
            path: Path) -> ModelConfig:
    try:
        config = config_files.from_gguf(metadata, "lm_head.weight" not in entries, divisors)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (TypeError, ZeroDivisionError) as error:  # a number that is a list or a string; 0 heads
        raise ConfigError(f"{path} has metadata that do not describe a model: {error}") from error
    first = "layers.0."
    return replace(config,  # that a llama has biases is said only by their presence
                   attention_bias=config.attention_bias or first + "self_attn.q_proj.bias" in entries,
                   output_bias=config.output_bias or first + "self_attn.o_proj.bias" in entries,
                   mlp_bias=config.mlp_bias or first + "mlp.gate_proj.bias" in entries)


def _permuted_heads(name: str, config: ModelConfig) -> int:
    """Heads whose rows are interleaved in this tensor, 0 when none are."""
    if config.architecture not in PERMUTED:
        return 0
    if ".self_attn.q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".self_attn.k_proj." in name else 0
