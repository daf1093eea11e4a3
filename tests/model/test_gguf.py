"""GGUF files against the `gguf` library's own reader and against `transformers`."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from checkpoints import interleave, metadata_of, write_gguf, write_hub_gguf
from families import hub_model
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from minillm.cache.base import NoCache
from minillm.model import zoo
from minillm.model.batch import make_batch
from minillm.model.config import ConfigError
from minillm.model.gguf import GGUFError, read_gguf, unpermute

WRITTEN_BY_GGUF = [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.TQ1_0, Kind.TQ2_0]
ONLY_READ_BY_GGUF = [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S,
                     Kind.IQ3_XXS, Kind.IQ3_S, Kind.IQ1_S, Kind.IQ1_M, Kind.IQ4_NL, Kind.IQ4_XS]


@pytest.fixture
def tiny(tmp_path):
    """A llama of families.py as a GGUF file."""
    return write_hub_gguf(tmp_path / "tiny.gguf", hub_model("llama"), "llama")


@pytest.mark.parametrize(("family", "architecture"), [
    ("llama", "llama"), ("llama-tied", "llama"), ("llama-mha", "llama"), ("llama-biases", "llama"),
    ("llama-linear", "llama"), ("llama-llama3", "llama"), ("mistral", "llama"), ("mistral", "mistral"),
    ("qwen2", "qwen2"), ("qwen3", "qwen3")])
def test_a_file_gives_the_logits_of_transformers(family: str, architecture: str, tmp_path) -> None:
    hub = hub_model(family)
    path = write_hub_gguf(tmp_path / "m.gguf", hub, architecture)
    model = zoo.load(path, device="cpu").model
    tokens = torch.randint(211, (40,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = hub(tokens[None]).logits[0]
    logits = model(make_batch([(0, tokens.tolist(), 0)], all_logits=True), NoCache(model.kv_specs()))
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()


def quantized_file(path, kind: Kind):
    """One tensor of the type, of random weights, or of random bytes where gguf can only read the type."""
    rng = np.random.default_rng(0)
    if kind in WRITTEN_BY_GGUF:
        data = quantize(rng.standard_normal((48, 512), np.float32), kind)
    else:
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        data = rng.integers(0, 256, (48, 512 // block * block_bytes), np.uint8)
    metadata = metadata_of(hub_model("llama"), "llama")
    return write_gguf(path, "llama", metadata, {"blk.0.ffn_up.weight": (data, kind)})


@pytest.mark.parametrize("kind", WRITTEN_BY_GGUF + ONLY_READ_BY_GGUF, ids=lambda kind: kind.name)
def test_every_quantization_is_read_as_the_library_reads_it(kind: Kind, tmp_path) -> None:
    path = quantized_file(tmp_path / "q.gguf", kind)
    [(name, tensor)] = read_gguf(path).tensors()
    assert name == "layers.0.mlp.up_proj.weight"
    assert tensor.shape == (48, 512)
    assert tensor.dtype == torch.float32
    with np.errstate(all="ignore"):
        theirs = gguf.GGUFReader(path).tensors[0]
        np.testing.assert_array_equal(tensor.numpy(), dequantize(theirs.data, kind))


def test_the_header_is_what_the_library_reads(tiny) -> None:
    """Our one-pass parser against GGUFReader: every key, every tensor's place."""
    ours, theirs = read_gguf(tiny), gguf.GGUFReader(tiny)
    keys = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == keys
    assert {(e.name, e.shape, e.kind, e.offset, e.size) for e in ours.entries.values()} == {
        (t.name, tuple(reversed(t.shape.tolist())), t.tensor_type, t.data_offset, t.n_bytes) for t in theirs.tensors}


def test_unpermute_undoes_what_the_converter_does() -> None:
    weight = np.arange(24 * 3, dtype=np.float32).reshape(24, 3)
    mixed = interleave(weight, heads=3)
    assert not np.array_equal(mixed, weight)
    np.testing.assert_array_equal(unpermute(torch.from_numpy(mixed), 3).numpy(), weight)
    np.testing.assert_array_equal(unpermute(torch.from_numpy(mixed[:, 0].copy()), 3).numpy(), weight[:, 0])  # a bias


def test_a_file_cut_anywhere_is_refused_before_any_weight_is_read(tiny, tmp_path) -> None:
    whole = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (*range(0, 2000, 37), *range(2000, len(whole), 4001), len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(GGUFError, match=r"cut\.gguf (ends|is|begins)") as error:
            read_gguf(cut)
        assert "\n" not in str(error.value)


def test_a_header_with_any_byte_flipped_never_raises_anything_but_one_line(tiny, tmp_path) -> None:
    whole, bad = tiny.read_bytes(), tmp_path / "bad.gguf"
    refused = 0
    for at in range(0, 2400, 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        bad.write_bytes(damaged)
        try:
            read_gguf(bad)
        except (GGUFError, ConfigError) as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(("content", "words"), [
    (b"", "begins with b''"), (b"PK\x03\x04" + b"x" * 100, "begins with b'PK"), (b"GGUF\x03\0\0\0", "is 8 bytes"),
    (b"GGUF\x01\0\0\0" + b"\0" * 40, "GGUF version 1"), (b"GGUF\0\0\0\x03" + b"\0" * 40, "big-endian"),
    (b"GGUF\x03\0\0\0" + b"\xff" * 40, "ends inside its header")])
def test_foreign_files_are_refused(content: bytes, words: str, tmp_path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=r"^[^\n]+$") as error:
        read_gguf(path)
    assert words in str(error.value)


def test_missing_file_and_folder_are_refused(tmp_path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(GGUFError, match="is not a file"):
            read_gguf(path)


def test_tensors_that_cannot_be_used_are_refused_by_name(tmp_path) -> None:
    metadata = metadata_of(hub_model("llama"), "llama")
    ones = np.ones((2, 4), np.float32)
    path = write_gguf(tmp_path / "a.gguf", "llama", metadata, {"blk.0.ffn_gate_exps.weight": ones})
    with pytest.raises(GGUFError, match=r"'blk.0.ffn_gate_exps.weight'"):
        read_gguf(path)
    path = write_gguf(tmp_path / "b.gguf", "llama", metadata, {"output.weight": ones.astype(np.int32)})
    with pytest.raises(GGUFError, match=r"'output.weight' is I32"):
        read_gguf(path)
    path.write_bytes(write_gguf(tmp_path / "d.gguf", "llama", metadata, {"blk.0.attn_q.bias": ones,
                                                                         "blk.0.attn_k.bias": ones}).read_bytes()
                     .replace(b"attn_k.bias", b"attn_q.bias"))
    with pytest.raises(GGUFError, match="twice"):
        read_gguf(path)
    path = write_gguf(tmp_path / "e.gguf", "llama", {**metadata, "llama.attention.head_count": 0}, {})
    with pytest.raises(ConfigError, match="num_heads is 0"):
        read_gguf(path)
    path = write_gguf(tmp_path / "f.gguf", "llama", {**metadata, "llama.attention.head_count": [6, 6, 6]}, {})
    with pytest.raises(ConfigError, match=r"^[^\n]+$"):
        read_gguf(path)
    path = write_gguf(tmp_path / "c.gguf", "gpt2", {}, {"output.weight": ones})
    with pytest.raises(ConfigError, match=r"c\.gguf.*'gpt2'"):
        read_gguf(path)
