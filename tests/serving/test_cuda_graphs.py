"""Decode steps through a graph's fixed inputs: the same texts, whatever rows come and go.

Without a GPU nothing can be recorded: a step then runs through the same inputs, padded the same way, and is launched
anew each time. With one, graphs are recorded and replayed.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from minillm.kernels import merge, paged_decode, rms_norm, rope_cache, swiglu
from tiny import END, ByteTokenizer, LoadedModel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minillm import measure
from minillm.cache import build
from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM
from minillm.model.batch import make_batch
from minillm.model.config import ModelConfig
from minillm.model.fused import fuse
from minillm.model.transformer import Transformer
from minillm.serving import cuda_graphs
from minillm.serving.cuda_graphs import GraphExecutor

DEVICE = measure.best_device()
RECORDED = None if DEVICE.type == "cuda" else lambda run: run


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """One layer with heads of a size that the kernels take, in float32."""
    config = ModelConfig("llama", 257, 64, 48, 1, 2, 1, 64, context_length=64, eos_ids=(END,), tie_embeddings=True)
    made = Transformer(config, device=DEVICE, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in made.named_parameters():
        parameter.data = (torch.ones_like(parameter) if "norm" in name
                          else 0.2 * torch.randn(parameter.shape, generator=generator).to(DEVICE))
    return LoadedModel(made, ByteTokenizer(), config, "tiny", Path("tiny"))


def graphed(model: LoadedModel, **options) -> LLM:
    llm = LLM(model, attention="triton", block_size=4, **options)
    old = llm.engine.executor
    llm.engine.executor = GraphExecutor(llm.model, llm.cache, len(old.host[0][0]), llm.max_num_seqs,
                                        llm.max_model_len, RECORDED)
    return llm


def test_the_ladder_ends_at_the_most_rows_and_is_close_where_rows_are_few() -> None:
    assert cuda_graphs.ladder(1) == [1]
    assert cuda_graphs.ladder(6) == [1, 2, 4, 6]
    assert cuda_graphs.ladder(16) == [1, 2, 4, 8, 16]
    assert cuda_graphs.ladder(40) == [1, 2, 4, 8, 16, 32, 40]


@pytest.mark.parametrize("budget", [3, 64])
def test_texts_are_those_of_the_reference(model: LoadedModel, budget: int) -> None:
    """More requests than rows, prompts in chunks: rows join and leave, and the last ones of a graph are empty."""
    prompts = ["abc", "c", "bacab", "ab", "cc"]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 4, 1, 3, 2)]
    plain = LLM(model, attention="reference")
    expected = [plain.generate(p, one)[0].outputs[0].token_ids for p, one in zip(prompts, params)]
    llm = graphed(model, max_num_seqs=3, max_num_batched_tokens=budget)
    assert [out.outputs[0].token_ids for out in llm.generate(prompts, params)] == expected
    assert llm.cache.pool.available == llm.cache.pool.num_blocks


def test_a_sequence_may_fill_the_context(model: LoadedModel) -> None:
    """Its last steps need every page of the graph's block tables."""
    params = SamplingParams(temperature=0, ignore_eos=True)
    plain, llm = LLM(model, attention="reference", max_model_len=11), graphed(model, max_num_seqs=1, max_model_len=11)
    outputs = [one.generate("abc", params)[0].outputs[0].token_ids for one in (plain, llm)]
    assert len(outputs[0]) == 8
    assert outputs[0] == outputs[1]


def test_decode_steps_are_replayed_and_prompts_are_not(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = graphed(model, max_num_seqs=4)
    replayed = []
    llm.engine.executor.graphs = {size: (lambda size=size, run=run: (replayed.append(size), run())[1])
                                  for size, run in llm.engine.executor.graphs.items()}
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 3, 3)]
    llm.generate(["abc", "ab", "cab"], params)
    assert replayed == [4, 2]  # three rows, then two; the first token of each came with its prompt


def test_an_engine_made_in_inference_mode_serves_outside_of_it(model: LoadedModel) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    expected = LLM(model, attention="reference").generate("abc", params)[0].outputs[0].token_ids
    with torch.inference_mode():
        llm = graphed(model, max_num_seqs=2)
    assert llm.generate("abc", params)[0].outputs[0].token_ids == expected


def test_a_step_empties_the_rows_behind_it(model: LoadedModel) -> None:
    executor = graphed(model, max_num_seqs=4).engine.executor
    executor.forward(make_batch([(seq, [1], 0) for seq in range(4)], DEVICE))
    executor.cache.free(3)
    executor.forward(make_batch([(seq, [3], 1) for seq in range(3)], DEVICE))
    inputs = executor.inputs
    assert inputs.context_lens.tolist() == [2, 2, 2, 0]
    assert (inputs.slots[:3] >= 0).all()
    assert inputs.slots[3] == -1


class FakeCuda:
    """Notes what is asked of torch.cuda, in order."""

    def __init__(self, notes: list) -> None:
        self.notes = notes

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda other: self.notes.append("side waits"))

    def current_stream(self):
        return SimpleNamespace(wait_stream=lambda other: self.notes.append("current waits"))

    def CUDAGraph(self):
        return SimpleNamespace(replay=lambda: self.notes.append("replay"))

    @contextmanager
    def stream(self, stream):
        self.notes.append("on the side")
        yield

    @contextmanager
    def graph(self, graph, pool=None):
        self.notes.append(("capture", pool))
        yield
        self.notes.append("captured")


def test_a_run_is_warmed_up_then_captured_then_replayed_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, out = [], torch.zeros(1)
    monkeypatch.setattr(torch, "cuda", FakeCuda(notes))
    replay = cuda_graphs.record(lambda: (notes.append("run"), out)[1], pool="shared")
    assert notes == ["side waits", "on the side", "run", "current waits", ("capture", "shared"), "run", "captured"]
    notes.clear()
    assert replay() is out
    assert replay() is out
    assert notes == ["replay", "replay"]


def test_an_empty_row_writes_nothing_and_changes_nobody(model: LoadedModel) -> None:
    llm = graphed(model, max_num_seqs=4)
    before = [tensor.fill_(7.0).clone() for tensor in llm.cache.store]
    executor = llm.engine.executor
    executor.graphs[4]()
    assert all(torch.equal(now, then) for now, then in zip(llm.cache.store, before))


def test_rows_that_left_a_graph_write_no_more(model: LoadedModel) -> None:
    """Four rows, then three in the same graph; the fourth's block belongs to another sequence by then."""
    llm = graphed(model, max_num_seqs=4)
    executor, cache = llm.engine.executor, llm.cache
    for tensor in cache.store:
        tensor.zero_()
    executor.forward(make_batch([(seq, [1, 2], 0) for seq in range(4)], DEVICE))
    executor.forward(make_batch([(seq, [3], 2) for seq in range(4)], DEVICE))
    cache.free(3)
    executor.forward(make_batch([(9, [5, 6, 7], 0)], DEVICE))
    theirs = cache.tables.tables[9][0]
    before = [tensor[:, theirs].clone() for tensor in cache.store]
    executor.forward(make_batch([(seq, [3], 3) for seq in range(3)], DEVICE))
    assert all(torch.equal(tensor[:, theirs], then) for tensor, then in zip(cache.store, before))


def test_only_the_rows_that_sample_give_logits(model: LoadedModel) -> None:
    executor = graphed(model, max_num_seqs=4).engine.executor
    batch = make_batch([(seq, [seq + 1], 0) for seq in range(3)], DEVICE)
    every = executor.forward(batch).clone()
    for seq in range(3):
        executor.cache.free(seq)
    batch.logit_rows = [0, 2]
    assert torch.equal(executor.forward(batch), every[[0, 2]])


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="graphs are recorded on a GPU")
def test_on_a_gpu_the_engine_records_its_own_graphs(model: LoadedModel) -> None:
    llm = LLM(model, attention="triton", max_num_seqs=4)
    assert isinstance(llm.engine.executor, GraphExecutor) and sorted(llm.engine.executor.graphs) == [1, 2, 4]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = LLM(model, attention="reference").generate("abc", params)[0].outputs[0].token_ids
    assert llm.generate("abc", params)[0].outputs[0].token_ids == expected


class Launches:
    """Stands in for a kernel: counts its launches, and keeps its tensors' devices."""

    def __init__(self) -> None:
        self.devices: list[set[str]] = []

    def __getitem__(self, grid: tuple):
        return lambda *args, **_: self.devices.append({a.device.type for a in args if isinstance(a, torch.Tensor)})


class OnTheDeviceOnly(TorchDispatchMode):
    """Raises at an operation that sees a tensor of the host: its copy would wait, which a capture does not allow.

    Also at those through which a list of Python numbers becomes a tensor of the device: torch.tensor, and indexing.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._opname in ("detach_", "lift_fresh", "index", "index_put_"):
            raise AssertionError(f"{func} may come with numbers of the host")
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                raise AssertionError(f"{func} sees {list(tensor.shape)} on {tensor.device}")
        return func(*args, **(kwargs or {}))


def test_what_is_captured_reads_nothing_back_and_copies_nothing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """On "meta", a device without values, whatever waits for one raises; and all that is launched lies there."""
    launches = {}
    for module, name in ((rms_norm, "add_rms_norm_kernel"), (swiglu, "swiglu_kernel"), (merge, "merge_kernel"),
                         (rope_cache, "rope_and_store_kernel"), (paged_decode, "paged_decode_kernel")):
        launches[name] = Launches()
        monkeypatch.setattr(module, name, launches[name])
    config = ModelConfig("llama", 257, 64, 48, 2, 2, 1, 64, context_length=512, eos_ids=(END,), tie_embeddings=True)
    model = fuse(Transformer(config, device="meta", dtype=torch.float32))
    cache = build.paged_cache(model.kv_specs(), 40, 16, backend="triton", device="meta")
    executor = GraphExecutor(model, cache, 0, 2, 512, lambda run: run)
    executor.graphs[2]()  # moves what a first run moves
    for kernel in launches.values():
        kernel.devices.clear()
    with OnTheDeviceOnly():
        logits = executor.graphs[2]()
    assert (logits.shape, logits.device.type) == ((2, 257), "meta")
    assert {name: kernel.devices for name, kernel in launches.items()} == {
        "add_rms_norm_kernel": [{"meta"}] * 3, "swiglu_kernel": [{"meta"}] * 2, "merge_kernel": [{"meta"}] * 2,
        "rope_and_store_kernel": [{"meta"}] * 2, "paged_decode_kernel": [{"meta"}] * 2}


def test_a_request_alone_without_graphs_gives_the_same(model: LoadedModel) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    texts = [LLM(model, attention=name).generate("abcab", params)[0].outputs[0].token_ids
             for name in ("triton", "reference")]
    assert texts[0] == texts[1]


def test_the_kernels_are_refused_where_they_cannot_run(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="attention backend is 'triton' on cpu: expected a GPU"):
        LLM("a model that is not looked for", attention="triton", device="cpu")
