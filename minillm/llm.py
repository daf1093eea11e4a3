"""LLM: a model, its tokenizer and the engine behind `generate`, `chat` and `stream`; names are vLLM's."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from minillm.attention import backends, triton_backend
from minillm.cache import build
from minillm.cache.paged import PagedKVCache
from minillm.decoding import beam, generate, sampling
from minillm.decoding.sampling import SamplingParams
from minillm.measure import hardware
from minillm.model import packing, zoo
from minillm.model.layers import Attention
from minillm.serving import scheduler
from minillm.serving.engine import Engine
from minillm.serving.executor import ModelExecutor
from minillm.serving.request import Answer, Request, RequestOutput
from minillm.serving.scheduler import SchedulerConfig

Message = dict[str, Any]
CPU_SHARE, GPU_SHARE = 0.25, 0.8  # of the memory, at most, for K and V: the machine has other things to do


@dataclass
class StreamDelta:
    """A piece of text that can be shown, and on the last one the whole output."""

    text: str
    output: RequestOutput | None = None


class LLM:
    """A model ready to answer.

    model                   a known name, a hub id, a folder or a .gguf file (see `zoo.load`), or a LoadedModel
    dtype                   'float32', 'float16', 'bfloat16'; 'auto': float32 on a CPU, bfloat16 on a GPU
    attention               'sdpa', 'reference', 'tiled', or 'triton': this project's kernels, on a GPU, with norms,
                            SwiGLU and RoPE fused and decode steps replayed as CUDA graphs
    max_model_len           prompt and output tokens of one request at most; default: the model's context
    max_num_seqs            sequences that run at once
    max_num_batched_tokens  tokens of one step at most: long prompts are computed in chunks beside those that decode
    scheduling_policy       who goes first: 'fcfs', 'shortest-prompt' or 'priority'
    swap_space_bytes        host memory for K and V of requests that must make room; 0: they are computed again
    block_size              tokens of one KV block
    kv_cache_dtype          'auto' (the model's), or one of cache.build.KV_DTYPES: fewer bytes a token
    kv_cache_memory_bytes   for K and V; default: what max_num_seqs × max_model_len needs, at most a quarter of the
                            machine's memory or eight tenths of the GPU's
    enable_prefix_caching   texts that begin like an earlier one start from its K and V
    prefix_index            'hash' (full blocks) or 'radix' (to the token)
    Raises ValueError, in one line, for anything it cannot load or does not know.
    """

    def __init__(
        self,
        model: str | Path | zoo.LoadedModel = "smollm2",
        *,
        dtype: str = "auto",
        device: str | torch.device | None = None,
        attention: str = "sdpa",
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 512,
        scheduling_policy: str = "fcfs",
        swap_space_bytes: int = 0,
        block_size: int = 16,
        kv_cache_dtype: str = "auto",
        kv_cache_memory_bytes: int | None = None,
        enable_prefix_caching: bool = True,
        prefix_index: str = "hash",
    ) -> None:
        self.attention = backends.check_backend(attention)
        build.check(block_size, kv_cache_dtype, prefix_index)
        limits = SchedulerConfig(max_num_seqs, max_num_batched_tokens, policy=scheduling_policy,
                                 preemption="swap" if swap_space_bytes else "recompute")
        for name, value, least in (("kv_cache_memory_bytes", kv_cache_memory_bytes, 1),
                                   ("swap_space_bytes", swap_space_bytes, 0)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name} is {value!r}: expected at least {least}")
        if attention == "triton":  # before anything is loaded
            triton_backend.check(model.model.device if isinstance(model, zoo.LoadedModel) else zoo.check_device(device))
        if isinstance(model, zoo.LoadedModel):
            loaded = model
        else:
            if dtype == "auto":
                on = zoo.check_device(device)
                dtype = "float32" if on.type == "cpu" else "bfloat16"
            loaded = zoo.load(model, dtype=dtype, device=device)
            packing.pack_where_faster(loaded.model)
        self.loaded = loaded
        self.model, self.tokenizer, self.config = loaded.model, loaded.tokenizer, loaded.config
        if attention == "triton":
            from minillm.model import fused  # needs Triton

            self.model = fused.fuse(self.model)
        self.max_model_len = self.config.context_length if max_model_len is None else max_model_len
        if not isinstance(self.max_model_len, int) or not 2 <= self.max_model_len <= self.config.context_length:
            raise ValueError(f"max_model_len is {max_model_len!r}: expected 2 to {self.config.context_length}, the "
                             "model's context")
        self.max_num_seqs = max_num_seqs
        self.end_ids = {*self.config.eos_ids, *self.tokenizer.eos_ids}
        self.cache = self._make_cache(block_size, kv_cache_dtype, kv_cache_memory_bytes,
                                      prefix_index if enable_prefix_caching else "none")
        self.engine = self._make_engine(limits, swap_space_bytes)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: Sequence[int] | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt (text or token ids) under its parameters, or under one set for all, in order.

        Together, by continuous batching: as many at a time as there are rows and blocks for. priority: one number a
        prompt, lower is more urgent, for the policy of that name. progress: a bar on stderr; None: on a terminal.

        Everything is checked before anything runs: ValueError for an empty prompt, an id outside the vocabulary, a
        prompt that leaves no room in the context, or as many parameters as prompts not given.
        """
        prompts = _as_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(params)} sampling parameters for {len(prompts)} prompts: expected one each, or one "
                             "for all")
        if priority is not None and len(priority) != len(prompts):
            raise ValueError(f"{len(priority)} priorities for {len(prompts)} prompts: expected one each")
        ranks = priority or [0] * len(prompts)
        requests = [self.request(prompt, p, rank) for prompt, p, rank in zip(prompts, params, ranks)]
        ended = (answer for answer, _ in self._run(requests) if answer.finish_reason is not None)
        for answer in _shown(ended, sum(p.n for p in params), sys.stderr.isatty() if progress is None else progress):
            answer.close()
        return [request.output() for request in requests]

    def beam_search(self, prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
                    params: beam.BeamSearchParams) -> list[list[beam.Beam]]:
        """For each prompt its `beam_width` likeliest continuations, the best first, with their text."""
        found = []
        for prompt in _as_list(prompts):
            request = self.request(prompt, SamplingParams(max_tokens=params.max_tokens, ignore_eos=params.ignore_eos))
            beams = beam.search(self.model, self.cache, request.prompt_ids, replace(
                params, max_tokens=request.params.max_tokens), request.answers[0].end_ids)
            for one in beams:
                one.text = self.tokenizer.decode(one.token_ids)
            found.append(beams)
        return found

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> RequestOutput:
        """Answer a conversation [{'role': ..., 'content': ...}, …], put through the model's chat template."""
        (output,) = self.generate([self.render(messages)], params)
        return output

    def stream(self, prompt: str | Sequence[int] | Sequence[Message],
               params: SamplingParams | None = None) -> Iterator[StreamDelta]:
        """Like `generate` of one prompt, or `chat` of one conversation, but piece by piece as the text comes.

        The request is checked at once, not when the first piece is taken.
        """
        if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], dict):
            prompt = self.render(prompt)
        params = params or SamplingParams()
        if params.n != 1:
            raise ValueError(f"n is {params.n}: expected 1 to stream; generate gives several answers")
        return self._deltas(self.request(prompt, params))

    def render(self, messages: Sequence[Message]) -> str:
        """The text that the model sees for a conversation, ending where its answer begins."""
        return self.tokenizer.render_chat(messages, add_generation_prompt=True)

    def _make_cache(self, block_size: int, kv_dtype: str, memory: int | None, index: str) -> PagedKVCache:
        specs = self.model.kv_specs()
        if memory is None:
            share = CPU_SHARE if self.device.type == "cpu" else GPU_SHARE
            memory = int(share * hardware.memory_bytes(self.device))
        wanted = self.max_num_seqs * -(-self.max_model_len // block_size)
        per_block = build.block_bytes(specs, block_size, kv_dtype, self.model.dtype)
        blocks = min(wanted, memory // per_block)
        if blocks < 1:
            raise ValueError(f"kv_cache_memory_bytes is {memory}: expected at least {per_block}, one block")
        return build.paged_cache(specs, blocks, block_size, kv_dtype, self.model.dtype, self.device, self.attention,
                                 index)

    def _make_engine(self, limits: SchedulerConfig, swap_space: int) -> Engine:
        pool = self.cache.pool
        per_block = self.cache.bytes // pool.num_blocks
        most = int(hardware.memory_bytes(torch.device("cpu")))
        if swap_space and not per_block <= swap_space <= most:
            raise ValueError(f"swap_space_bytes is {swap_space}: expected 0, or at least {per_block}, one block, and "
                             f"at most {most}, the machine's memory")
        host_blocks = swap_space // per_block
        return Engine(self._make_executor(host_blocks), scheduler.Scheduler(self.cache.tables, limits, host_blocks))

    def _make_executor(self, host_blocks: int) -> ModelExecutor:
        """Decode steps are replayed as CUDA graphs where there is a GPU, and a cache that knows empty rows."""
        dense = all(isinstance(block.self_attn, Attention) for block in self.model.layers)
        if self.device.type != "cuda" or not dense or not hasattr(self.cache, "rotate_and_attend"):
            return ModelExecutor(self.model, self.cache, host_blocks)
        from minillm.serving import cuda_graphs  # needs Triton

        return cuda_graphs.GraphExecutor(self.model, self.cache, host_blocks, self.max_num_seqs, self.max_model_len)

    def _deltas(self, request: Request) -> Iterator[StreamDelta]:
        for _, text in self._run([request]):
            if text:
                yield StreamDelta(text)
        yield StreamDelta(request.answers[0].close(), request.output())

    def request(self, prompt: str | Sequence[int], params: SamplingParams, priority: int = 0, cache_salt: str = "",
                request_id: str | None = None) -> Request:
        """A request, checked but not yet in the line. Raises ValueError as `generate` does."""
        arrival = time.perf_counter()
        _check_types(prompt, params, priority, cache_salt, request_id)
        text = prompt if isinstance(prompt, str) else None
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise ValueError("prompt is empty: expected at least one token")
        for token in (*ids, *params.stop_token_ids):
            if not isinstance(token, int) or not 0 <= token < self.config.vocab_size:
                raise ValueError(f"token id is {token!r}: expected 0 to {self.config.vocab_size - 1}")
        room = self.max_model_len - len(ids)
        if room < 1:
            raise ValueError(f"prompt is {len(ids)} tokens: expected at most {self.max_model_len - 1}, so that one can "
                             f"follow in a context of {self.max_model_len}")
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        params = replace(params, max_tokens=limit)
        self.engine.scheduler.check_fits(len(ids), limit, params.n)
        end_ids = {*params.stop_token_ids, *(() if params.ignore_eos else self.end_ids)}
        return Request.create(request_id or uuid.uuid4().hex, text, ids, params, end_ids, arrival, self.tokenizer,
                              priority, cache_salt)

    def _run(self, requests: Sequence[Request]) -> Iterator[tuple[Answer, str]]:
        """Run requests to their end; yields each new token's answer, and the text it makes safe.

        Other requests of the engine go on meanwhile. Whatever is unfinished when nobody asks for more is aborted.
        """
        if len(requests) == 1 and self._opens_alone(requests[0]):
            yield from self._alone(requests[0].answers[0])
            return
        try:
            for request in requests:
                self.engine.add(request)
            while True:
                for request in requests:
                    while request.events:
                        yield request.events.popleft()
                if all(request.finished for request in requests):
                    return
                self.engine.step()
        finally:
            for request in requests:
                if request.request_id in self.engine.requests:
                    self.engine.abort(request.request_id)

    def _opens_alone(self, request: Request) -> bool:
        """Whether lesson 1's loop can serve it, as sequence 0: one answer, nobody else, nothing of it cached yet."""
        tables = self.cache.tables
        if len(request.answers) > 1 or self.engine.has_unfinished or tables.tables:
            return False
        if type(self.engine.executor) is not ModelExecutor:  # replays its steps: faster than any loop from here
            return False
        if tables.index is not None and tables.index.match(request.prompt_ids)[0]:
            return False
        tables.start(0, request.prompt_ids)
        return True

    def _alone(self, answer: Answer) -> Iterator[tuple[Answer, str]]:
        """Lesson 1's loop, for sequence 0 with nothing cached yet."""
        tokens = generate.cached_tokens(
            self.model, self.cache, answer.sampler.prompt_ids,
            lambda logits: sampling.sample(logits, [answer.sampler])[0], answer.params.max_tokens, answer.end_ids)
        try:
            for token in tokens:
                text = answer.take(token)
                if answer.finish_reason is not None:
                    written = [*answer.sampler.prompt_ids, *answer.token_ids]
                    self.cache.tables.register(0, written, closing=True)
                yield answer, text
                if answer.finish_reason is not None:
                    return
        finally:  # also when nobody takes the rest of a stream
            self.cache.tables.free(0)


def _shown(answers: Iterable[Answer], total: int, show: bool) -> Iterable[Answer]:
    """`answers`, with a bar that fills as they end."""
    if not show or total < 2:
        return answers
    return track(answers, "generating", total, console=Console(stderr=True), transient=True)


def _check_types(prompt: Any, params: Any, priority: Any, cache_salt: Any, request_id: Any) -> None:
    """Raises ValueError for what a request cannot be made of: once it is in the line, it is too late."""
    for name, value, kind, expected in (
            ("prompt", prompt, (str, list, tuple), "a text or a list of token ids"),
            ("params", params, SamplingParams, "SamplingParams"),
            ("priority", priority, int, "a whole number, lower is more urgent"),
            ("cache_salt", cache_salt, str, "a text"),
            ("request_id", request_id, (str, type(None)), "a text, or None for a new one")):
        if not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r:.60}: expected {expected}")
    for name, text in (("prompt", prompt), ("cache_salt", cache_salt)):
        if isinstance(text, str) and text.encode("utf-8", "replace").decode() != text:
            raise ValueError(f"{name} is {text!r:.60}: expected a text without half surrogate pairs, as UTF-8 is")


def _as_list(prompts: Any) -> list[str | Sequence[int]]:
    """A list of prompts from one text, one list of ids, or several of either."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (list, tuple)):
        if prompts and isinstance(prompts[0], int):
            return [prompts]
        if all(isinstance(prompt, (str, list, tuple)) for prompt in prompts):
            return list(prompts)
    raise ValueError(f"prompts are {prompts!r:.60}: expected a text, a list of token ids, or a list of either")
