"""Read a hub folder: config.json, and its weights from model.safetensors or from the shards of an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from minillm.model import config_files
from minillm.model.config import ConfigError, ModelConfig

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = ("F64", "F32", "F16", "BF16")


class SafetensorsError(ValueError):
    """A folder that is incomplete, or a safetensors file that is truncated, foreign or quantized."""


@dataclass(frozen=True)
class SafetensorsFolder:
    """An opened hub folder: nothing of its weights is in memory until `tensors` is iterated."""

    path: Path
    metadata: dict[str, Any]  # config.json as it stands
    config: ModelConfig
    files: dict[str, Path]  # which file holds a weight, by name without "model."
    stored_names: dict[str, str]  # the name in that file
    shapes: dict[str, tuple[int, ...]]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name without "model.", CPU tensor in the file's dtype), one at a time, file after file."""
        for file in sorted(set(self.files.values())):
            with safe_open(file, framework="pt") as opened:
                for name, place in self.files.items():
                    if place == file:
                        yield name, opened.get_tensor(self.stored_names[name])


def read_folder(path: str | Path) -> SafetensorsFolder:
    """Open the folder and read every tensor's name, dtype and shape. Raises SafetensorsError, ConfigError."""
    path = Path(path)
    data = read_json(path / "config.json")
    try:
        config = config_files.from_hf(data, path.name)
    except ConfigError as error:
        raise ConfigError(f"{path / 'config.json'}: {error}") from error
    except (TypeError, AttributeError, ZeroDivisionError) as error:  # a number that is a string; 0 heads
        raise ConfigError(f"{path / 'config.json'} does not describe a model: {error}") from error
    config = replace(config, eos_ids=_eos_ids(path, config))
    files, stored_names, shapes = {}, {}, {}
    for file, wanted in _weight_files(path):
        for stored, shape in _file_shapes(file, wanted).items():
            name = stored.removeprefix("model.")
            if not _is_ignored(name, config):
                files[name], stored_names[name], shapes[name] = file, stored, shape
    return SafetensorsFolder(path, data, config, files, stored_names, shapes)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises SafetensorsError when it is not there, or is not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise SafetensorsError(f"{path.parent} has no {path.name}: expected a hub folder with config.json, "
                               f"tokenizer.json and safetensors files") from None
    except ValueError as error:
        raise SafetensorsError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise SafetensorsError(f"{path} holds a {type(data).__name__}: expected an object")
    return data


def _weight_files(path: Path) -> list[tuple[Path, list[str] | None]]:
    """Each file with the tensors that the index says it holds (None: whatever is there)."""
    if (path / SINGLE).is_file():
        return [(path / SINGLE, None)]
    if not (path / INDEX).is_file():
        raise SafetensorsError(f"{path} has neither {SINGLE} nor {INDEX}: expected one of the two")
    places = read_json(path / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(v, str) for v in places.values()):
        raise SafetensorsError(f"{path / INDEX} has no weight_map: expected one from tensor names to file names")
    shards: dict[str, list[str]] = {}
    for tensor, file in places.items():
        shards.setdefault(file, []).append(tensor)
    for file in shards:
        if Path(file).name != file:
            raise SafetensorsError(f"{path / INDEX} names the file {file!r}: expected a file of the same folder")
        if not (path / file).is_file():
            raise SafetensorsError(f"{path} has no {file}: expected it, {INDEX} names it for {shards[file][0]!r}")
    return [(path / file, tensors) for file, tensors in shards.items()]


def _file_shapes(file: Path, wanted: list[str] | None) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(file, framework="pt") as opened:
            present = set(opened.keys())
            for name in wanted or ():
                if name not in present:
                    raise SafetensorsError(f"{file} has no tensor {name!r}: expected it, {INDEX} says it is there")
            slices = {name: opened.get_slice(name) for name in (wanted or sorted(present))}
            for name, part in slices.items():
                if part.get_dtype() not in DTYPES:
                    raise SafetensorsError(f"{file} tensor {name!r} is {part.get_dtype()}: expected one of "
                                           f"{', '.join(DTYPES)}")
            return {name: tuple(part.get_shape()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise SafetensorsError(f"{file} cannot be read as safetensors, it is truncated or foreign: {error}") from None


def _is_ignored(name: str, config: ModelConfig) -> bool:
    """Weights that a hub checkpoint may hold and that the model computes or shares."""
    return name.endswith("rotary_emb.inv_freq") or (config.tie_embeddings and name == "lm_head.weight")


def _eos_ids(path: Path, config: ModelConfig) -> tuple[int, ...]:
    """Those of config.json, then those that generation_config.json adds (a chat model's end of turn)."""
    found = list(config.eos_ids)
    if (path / "generation_config.json").is_file():
        extra = read_json(path / "generation_config.json").get("eos_token_id")
        found += extra if isinstance(extra, list) else [] if extra is None else [extra]
    return tuple(dict.fromkeys(found))
