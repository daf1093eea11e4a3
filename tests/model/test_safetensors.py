"""Hub folders, whole and sharded, against `transformers`; and folders with something wrong."""

from __future__ import annotations

import json

import pytest
import torch
from checkpoints import write_folder
from families import hub_model
from safetensors.torch import load_file, save_file

from minillm.cache.base import NoCache
from minillm.model import zoo
from minillm.model.batch import make_batch
from minillm.model.config import ConfigError
from minillm.model.safetensors import SafetensorsError, read_folder

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path):
    """A llama of families.py in one file."""
    return write_folder(tmp_path / "tiny", hub_model("llama"))


def change(folder, edit) -> None:
    """Rewrite model.safetensors after `edit(dict of tensors)`."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("shard", ["1GB", "40KB"])
@pytest.mark.parametrize("family", ["llama", "llama-tied", "llama-llama3", "mistral-window", "qwen2", "qwen3"])
def test_a_folder_gives_the_logits_of_transformers(family: str, shard: str, tmp_path) -> None:
    hub = hub_model(family)
    path = write_folder(tmp_path / "m", hub, shard)
    assert (len(list(path.glob("*.safetensors"))) > 1) == (shard == "40KB")
    model = zoo.load(path, device="cpu").model
    tokens = torch.randint(211, (40,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = hub(tokens[None]).logits[0]
    logits = model(make_batch([(0, tokens.tolist(), 0)], all_logits=True), NoCache(model.kv_specs()))
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_tensors_keep_the_dtype_of_the_file(tmp_path) -> None:
    hub = hub_model("llama").bfloat16()
    path = write_folder(tmp_path / "m", hub)
    assert {tensor.dtype for _, tensor in read_folder(path).tensors()} == {torch.bfloat16}
    wide = zoo.load(path, "float32", "cpu").model
    assert wide.dtype == torch.float32
    assert torch.equal(wide.norm.weight, hub.model.norm.weight.float())


def test_a_tied_folder_may_hold_the_head_as_well(tmp_path) -> None:
    path = write_folder(tmp_path / "m", hub_model("llama-tied"))
    change(path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone(),
                                     "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert zoo.load(path, device="cpu").model.lm_head is None


def test_a_missing_extra_or_misshapen_tensor_is_named(folder) -> None:
    change(folder, lambda t: t.update({Q_PROJ: torch.zeros(47, 48)}))
    with pytest.raises(zoo.ModelError, match=r"'layers.1.self_attn.q_proj.weight' .* \[47, 48\]: expected \[48, 48\]"):
        zoo.load(folder, device="cpu")
    change(folder, lambda t: t.pop(Q_PROJ))
    with pytest.raises(zoo.ModelError, match=r"has no tensor 'layers.1.self_attn.q_proj.weight': .* \[48, 48\]"):
        zoo.load(folder, device="cpu")
    change(folder, lambda t: t.update({Q_PROJ: torch.zeros(48, 48), "model.layers.9.norm.weight": torch.zeros(3)}))
    with pytest.raises(zoo.ModelError, match=r"has the tensor 'layers.9.norm.weight' \(1 such\)"):
        zoo.load(folder, device="cpu")


def test_a_quantized_tensor_is_refused_by_name(folder) -> None:
    change(folder, lambda t: t.update({Q_PROJ: torch.zeros(48, 48, dtype=torch.int8)}))
    with pytest.raises(SafetensorsError, match=f"'{Q_PROJ}' is I8: expected one of F64, F32, F16, BF16"):
        read_folder(folder)


def test_a_file_cut_anywhere_is_refused(folder) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(SafetensorsError, match=r"^[^\n]*model\.safetensors cannot be read[^\n]*$"):
            read_folder(folder)


@pytest.mark.parametrize(("name", "text", "words"), [
    ("config.json", None, "has no config.json"), ("config.json", "{", "is not JSON"),
    ("config.json", "[1]", "holds a list"), ("generation_config.json", "{", "is not JSON"),
    ("model.safetensors", None, "has neither model.safetensors nor model.safetensors.index.json")])
def test_a_folder_with_a_part_missing_or_foreign_is_refused(name: str, text, words: str, folder) -> None:
    (folder / name).unlink(missing_ok=True)
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(SafetensorsError, match=r"^[^\n]+$") as error:
        read_folder(folder)
    assert words in str(error.value)


@pytest.mark.parametrize(("changes", "words"), [
    ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"), ({"hidden_size": "wide"}, "config.json"),
    ({"num_attention_heads": 0}, "config.json"), ({"hidden_act": "gelu"}, "gelu")])
def test_a_configuration_that_cannot_run_is_refused(changes, words: str, folder) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(ConfigError, match=r"^[^\n]+$") as error:
        read_folder(folder)
    assert words in str(error.value)


def test_an_index_that_is_wrong_is_refused(tmp_path) -> None:
    path = write_folder(tmp_path / "m", hub_model("llama"), "40KB")
    file = path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    shard = index["weight_map"][Q_PROJ]
    for weight_map, words in (({**index["weight_map"], "model.x": shard}, "has no tensor 'model.x'"),
                              ({**index["weight_map"], "model.x": "gone.safetensors"}, "has no gone.safetensors"),
                              ({"model.x": "../out.safetensors"}, "expected a file of the same folder"),
                              ({}, "has no weight_map")):
        file.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(SafetensorsError, match=r"^[^\n]+$") as error:
            read_folder(path)
        assert words in str(error.value)
    file.write_text(json.dumps(index))
    (path / shard).unlink()
    with pytest.raises(SafetensorsError, match=f"has no {shard}"):
        read_folder(path)


def test_generation_config_adds_the_ends_of_turn(folder) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7, 9]}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 7}))
    assert read_folder(folder).config.eos_ids == (7, 2, 9)
    loaded = zoo.load(folder, device="cpu")
    assert loaded.config.eos_ids == loaded.tokenizer.eos_ids == (7, 2, 9)
