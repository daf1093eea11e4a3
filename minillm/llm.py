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
from minillm.cache.contiguous import ContiguousKVCache
from minillm.decoding import generate, sampling
from minillm.decoding.sampling import RequestSampler, SamplingParams
from minillm.decoding.streaming import StreamDecoder
from minillm.model import zoo
from minillm.serving.request import CompletionOutput, RequestOutput

Message = dict[str, Any]


@dataclass
class StreamDelta:
    """A piece of text that can be shown, and on the last one the whole output."""

    text: str
    output: RequestOutput | None = None


class LLM:
    """A model ready to answer.

    model          a known name, a hub id, a folder or a .gguf file (see `zoo.load`), or a LoadedModel
    dtype          'float32', 'float16', 'bfloat16'; 'auto': float32 on a CPU, bfloat16 on a GPU
    attention      the backend, one of attention.backends.BACKENDS
    max_model_len  prompt and output tokens of one request at most; default: the model's context
    max_num_seqs   prompts that `generate` runs at once
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
    ) -> None:
        self.attention = backends.check_backend(attention)
        if not isinstance(max_num_seqs, int) or max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {max_num_seqs!r}: expected at least 1")
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
        self._ids = itertools.count()

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
        for first in range(0, len(requests), self.max_num_seqs):
            group = requests[first : first + self.max_num_seqs]
            if len(group) == 1:
                for _ in self._run_one(group[0]):
                    pass
            else:
                self._run_batch(group)
        return [request.output() for request in requests]

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
        return self._deltas(self._request(prompt, params or SamplingParams()))

    def render(self, messages: Sequence[Message]) -> str:
        """The text that the model sees for a conversation, ending where its answer begins."""
        return self.tokenizer.render_chat(messages, add_generation_prompt=True)

    def _deltas(self, request: _Request) -> Iterator[StreamDelta]:
        for text in self._run_one(request):
            if text:
                yield StreamDelta(text)
        yield StreamDelta("", request.output())

    def _request(self, prompt: str | Sequence[int], params: SamplingParams) -> _Request:
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
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        params = replace(params, max_tokens=limit)
        end_ids = {*params.stop_token_ids, *(() if params.ignore_eos else self.end_ids)}
        return _Request(str(next(self._ids)), text, ids, params, end_ids, arrival, RequestSampler(params, ids),
                        StreamDecoder(self.tokenizer, params.stop, params.include_stop_str_in_output))

    def _cache(self, requests: Sequence[_Request]) -> ContiguousKVCache:
        longest = max(len(r.prompt_ids) + r.params.max_tokens for r in requests)
        return ContiguousKVCache(self.model.kv_specs(), len(requests), longest, self.model.dtype, self.device,
                                 self.attention)

    def _run_one(self, request: _Request) -> Iterator[str]:
        """Run a single request on the cached loop, yielding text as it becomes safe to show."""
        tokens = generate.cached_tokens(
            self.model, self._cache([request]), request.prompt_ids,
            lambda logits: sampling.sample(logits, [request.sampler])[0], request.params.max_tokens, request.end_ids)
        for token in tokens:
            yield request.take(token)
            if request.finish_reason is not None:
                break
        yield request.close()

    def _run_batch(self, requests: Sequence[_Request]) -> None:
        """Run several requests as one static batch."""
        steps = generate.batch_tokens(
            self.model, self._cache(requests), [r.prompt_ids for r in requests],
            lambda logits, rows: sampling.sample(logits, [requests[row].sampler for row in rows]),
            lambda row, token: requests[row].finish_reason is not None)
        for emitted in steps:
            for row, token in emitted:
                requests[row].take(token)
        for request in requests:
            request.close()


@dataclass
class _Request:
    """A request under way: what was asked, and what has come of it."""

    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    end_ids: set[int]
    arrival: float
    sampler: RequestSampler
    decoder: StreamDecoder
    token_ids: list[int] = None
    token_times: list[float] = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def __post_init__(self) -> None:
        self.token_ids, self.token_times = [], []

    def take(self, token: int) -> str:
        """Account for a new token; return the text that can be shown, and set finish_reason if it was the last."""
        self.token_times.append(time.perf_counter())
        self.token_ids.append(token)
        text = ""
        if token in self.end_ids:
            self.finish_reason = "stop"
            self.stop_reason = token if token in self.params.stop_token_ids else None
        else:
            text = self.decoder.push(token)
            if self.decoder.stopped_by is not None:
                self.finish_reason, self.stop_reason = "stop", self.decoder.stopped_by
        if self.finish_reason is None and len(self.token_ids) == self.params.max_tokens:
            self.finish_reason = "length"
        return text

    def close(self) -> str:
        """The text still held back, once no token follows."""
        return self.decoder.finish()

    def output(self) -> RequestOutput:
        logprobs = self.sampler.logprobs if self.params.logprobs is not None else None
        if logprobs is not None:
            for entry in logprobs:
                for token, logprob in entry.items():
                    logprob.decoded_token = self.decoder.tokenizer.token_bytes(token).decode("utf-8", "replace")
        cumulative = None if logprobs is None else sum(
            entry[token].logprob for entry, token in zip(logprobs, self.token_ids))
        completion = CompletionOutput(
            index=0, text=self.decoder.text, token_ids=list(self.token_ids), cumulative_logprob=cumulative,
            logprobs=logprobs, finish_reason=self.finish_reason, stop_reason=self.stop_reason,
            token_times=list(self.token_times))
        return RequestOutput(self.request_id, self.prompt, list(self.prompt_ids), [completion],
                             self.finish_reason is not None, self.arrival)


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
