"""LLM: a model, its tokenizer and the decode loops behind `generate`, `chat` and `stream`; names are vLLM's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from minillm.attention import backends
from minillm.cache import build
from minillm.cache.paged import PagedKVCache
from minillm.decoding import beam, generate, sampling
from minillm.decoding.sampling import SamplingParams
from minillm.measure import hardware
from minillm.model import zoo
from minillm.serving.request import Answer, Request, RequestOutput

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
    attention               the backend, one of attention.backends.BACKENDS
    max_model_len           prompt and output tokens of one request at most; default: the model's context
    max_num_seqs            sequences that run at once
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
        block_size: int = 16,
        kv_cache_dtype: str = "auto",
        kv_cache_memory_bytes: int | None = None,
        enable_prefix_caching: bool = True,
        prefix_index: str = "hash",
    ) -> None:
        self.attention = backends.check_backend(attention)
        build.check(block_size, kv_cache_dtype, prefix_index)
        for name, value in (("max_num_seqs", max_num_seqs), ("kv_cache_memory_bytes", kv_cache_memory_bytes)):
            if value is None and name != "max_num_seqs":
                continue
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}: expected at least 1")
        if isinstance(model, zoo.LoadedModel):
            loaded = model
        else:
            if dtype == "auto":
                on = zoo.check_device(device)
                dtype = "float32" if on.type == "cpu" else "bfloat16"
            loaded = zoo.load(model, dtype=dtype, device=device)
        self.loaded = loaded
        self.model, self.tokenizer, self.config = loaded.model, loaded.tokenizer, loaded.config
        self.max_model_len = self.config.context_length if max_model_len is None else max_model_len
        if not isinstance(self.max_model_len, int) or not 2 <= self.max_model_len <= self.config.context_length:
            raise ValueError(f"max_model_len is {max_model_len!r}: expected 2 to {self.config.context_length}, the "
                             "model's context")
        self.max_num_seqs = max_num_seqs
        self.end_ids = {*self.config.eos_ids, *self.tokenizer.eos_ids}
        self.cache = self._make_cache(block_size, kv_cache_dtype, kv_cache_memory_bytes,
                                      prefix_index if enable_prefix_caching else "none")
        self._ids = itertools.count()
        self._seqs = itertools.count(1)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt (text or token ids) under its parameters, or under one set for all, in order.

        Everything is checked before anything runs: ValueError for an empty prompt, an id outside the vocabulary, a
        prompt that leaves no room in the context, or as many parameters as prompts not given.
        """
        prompts = _as_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(params)} sampling parameters for {len(prompts)} prompts: expected one each, or one "
                             "for all")
        requests = [self._request(prompt, p) for prompt, p in zip(prompts, params)]
        for group in self._groups(requests):
            for answer, _ in self._run(group):
                if answer.finish_reason is not None:
                    answer.close()
        return [request.output() for request in requests]

    def beam_search(self, prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
                    params: beam.BeamSearchParams) -> list[list[beam.Beam]]:
        """For each prompt its `beam_width` likeliest continuations, the best first, with their text."""
        found = []
        for prompt in _as_list(prompts):
            request = self._request(prompt, SamplingParams(max_tokens=params.max_tokens, ignore_eos=params.ignore_eos))
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
        if not isinstance(prompt, str) and len(prompt) and isinstance(prompt[0], dict):
            prompt = self.render(prompt)
        params = params or SamplingParams()
        if params.n != 1:
            raise ValueError(f"n is {params.n}: expected 1 to stream; generate gives several answers")
        return self._deltas(self._request(prompt, params))

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

    def _deltas(self, request: Request) -> Iterator[StreamDelta]:
        for _, text in self._run([request]):
            if text:
                yield StreamDelta(text)
        yield StreamDelta(request.answers[0].close(), request.output())

    def _request(self, prompt: str | Sequence[int], params: SamplingParams) -> Request:
        arrival = time.perf_counter()
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
        if params.n > self.max_num_seqs:
            raise ValueError(f"n is {params.n}: expected at most max_num_seqs ({self.max_num_seqs})")
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        params = replace(params, max_tokens=limit)
        needed, pool = self._blocks_at_most(len(ids), params), self.cache.pool
        if needed > pool.num_blocks:
            raise ValueError(f"request needs {needed} KV blocks for {len(ids)} prompt tokens and {params.n} × {limit} "
                             f"new ones: expected at most {pool.num_blocks}, the whole pool")
        end_ids = {*params.stop_token_ids, *(() if params.ignore_eos else self.end_ids)}
        return Request.create(str(next(self._ids)), text, ids, params, end_ids, arrival, self.tokenizer)

    def _blocks_at_most(self, prompt_tokens: int, params: SamplingParams) -> int:
        """Blocks that a request can fill: its prompt's full ones once, the rest for each answer."""
        pool = self.cache.pool
        shared = prompt_tokens // pool.block_size
        return shared + params.n * (pool.blocks_for(prompt_tokens + params.max_tokens) - shared)

    def _groups(self, requests: Sequence[Request]) -> Iterator[list[Request]]:
        """Requests in order, as many at a time as there are rows and blocks for."""
        group: list[Request] = []
        rows = blocks = 0
        for request in requests:
            needed = self._blocks_at_most(len(request.prompt_ids), request.params)
            if group and (rows + request.params.n > self.max_num_seqs or blocks + needed > self.cache.pool.available):
                yield group
                group, rows, blocks = [], 0, 0
            group.append(request)
            rows, blocks = rows + request.params.n, blocks + needed
        if group:
            yield group

    def _run(self, requests: Sequence[Request]) -> Iterator[tuple[Answer, str]]:
        """Run requests together, as one static batch; yields each new token's answer, and the text it makes safe."""
        tables, answers = self.cache.tables, {}
        prompts: dict[int, Sequence[int]] = {}
        forks: dict[int, list[int]] = {}
        try:
            for request in requests:
                first, *others = self._new_seqs(request, alone=len(requests) == 1)
                request.num_cached_tokens = tables.start(first, request.prompt_ids)
                answers.update(zip((first, *others), request.answers))
                prompts[first], forks[first] = request.prompt_ids, others
            if 0 in answers and tables.lengths[0] == 0:
                steps = self._alone(answers[0])
            else:
                steps = self._together(answers, prompts, forks)
            for emitted in steps:
                for seq, token in emitted:
                    yield answers[seq], answers[seq].take(token)
        finally:  # also when nobody takes the rest of a stream
            for seq in answers:
                if seq in tables.tables:
                    tables.free(seq)

    def _new_seqs(self, request: Request, alone: bool) -> list[int]:
        """A sequence for each answer: 0 for a request's only one, when it runs alone; else ids never used before."""
        if alone and len(request.answers) == 1 and 0 not in self.cache.tables.tables:
            return [0]
        return [next(self._seqs) for _ in request.answers]

    def _alone(self, answer: Answer) -> Iterator[list[tuple[int, int]]]:
        """Lesson 1's loop, for sequence 0 with nothing cached yet."""
        tokens = generate.cached_tokens(
            self.model, self.cache, answer.sampler.prompt_ids,
            lambda logits: sampling.sample(logits, [answer.sampler])[0], answer.params.max_tokens, answer.end_ids)
        for token in tokens:
            yield [(0, token)]
            if answer.finish_reason is not None:
                self._remember(0, answer)
                return

    def _together(self, answers: dict[int, Answer], prompts: dict[int, Sequence[int]],
                  forks: dict[int, list[int]]) -> Iterator[list[tuple[int, int]]]:
        def is_last(seq: int, token: int) -> bool:
            if answers[seq].finish_reason is None:
                return False
            self._remember(seq, answers[seq])
            return True

        return generate.batch_tokens(
            self.model, self.cache, prompts,
            lambda logits, seqs: sampling.sample(logits, [answers[seq].sampler for seq in seqs]), is_last, forks)

    def _remember(self, seq: int, answer: Answer) -> None:
        """Let the prefix index know what a finished sequence's blocks hold: the next turn starts from them."""
        self.cache.tables.register(seq, [*answer.sampler.prompt_ids, *answer.token_ids], closing=True)


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
