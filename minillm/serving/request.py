"""A request under way, and what comes back for it, with vLLM's field names and the time of each token."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace

from minillm.decoding.sampling import Logprob, RequestSampler, SamplingParams
from minillm.decoding.streaming import StreamDecoder, TokenBytes
from minillm.measure.metrics import RequestTimes


@dataclass
class CompletionOutput:
    """One answer. `token_ids` holds the end token, if one came; `text` shows neither it nor a stop string.

    finish_reason  'stop' (an end token or a stop string), 'length' (max_tokens, or the context's end) or 'abort';
                   None: running
    stop_reason    the stop string, or the id of the stop token that was asked for; None for the model's own end token
    token_times    when each token reached the host, seconds on time.perf_counter()
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_times: list[float] | None = None


@dataclass
class RequestOutput:
    """A request with its answers, one or `SamplingParams.n`.

    arrival            when it was made, on the clock of the token times
    num_cached_tokens  prompt tokens that a prefix cache had already
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    arrival: float
    num_cached_tokens: int = 0

    @property
    def times(self) -> RequestTimes:
        """What TTFT, TPOT and ITL of the first answer are computed from."""
        return RequestTimes(self.arrival, tuple(self.outputs[0].token_times), len(self.prompt_token_ids))


@dataclass
class Answer:
    """One of a request's answers as it grows: its draws, its text, and why it ended."""

    index: int
    params: SamplingParams
    end_ids: set[int]
    sampler: RequestSampler
    decoder: StreamDecoder
    token_ids: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

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

    def completion(self) -> CompletionOutput:
        # a row of a fixed batch draws on after its answer has ended
        logprobs = self.sampler.logprobs[: len(self.token_ids)] if self.params.logprobs is not None else None
        if logprobs is not None:
            for entry in logprobs:
                for token, logprob in entry.items():
                    logprob.decoded_token = self.decoder.tokenizer.token_bytes(token).decode("utf-8", "replace")
        cumulative = None if logprobs is None else sum(
            entry[token].logprob for entry, token in zip(logprobs, self.token_ids))
        return CompletionOutput(
            index=self.index, text=self.decoder.text, token_ids=list(self.token_ids), cumulative_logprob=cumulative,
            logprobs=logprobs, finish_reason=self.finish_reason, stop_reason=self.stop_reason,
            token_times=list(self.token_times))


@dataclass
class Request:
    """A request under way: what was asked, and its n answers. `params.max_tokens` is a number: the context's limit.

    priority: lower is more urgent, where the scheduler goes by it. cache_salt: only requests with the same one share
    blocks. events: (answer, new text) of each token that nobody has taken yet.
    """

    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    arrival: float
    answers: list[Answer]
    priority: int = 0
    cache_salt: str = ""
    num_cached_tokens: int = 0
    events: deque[tuple[Answer, str]] = field(default_factory=deque)

    @classmethod
    def create(cls, request_id: str, prompt: str | None, prompt_ids: list[int], params: SamplingParams,
               end_ids: set[int], arrival: float, tokenizer: TokenBytes, priority: int = 0,
               cache_salt: str = "") -> Request:
        """With one sampler and one decoder an answer; answer i draws with seed + i. `end_ids`: tokens that end it."""
        answers = []
        for index in range(params.n):
            own = params if params.seed is None else replace(params, seed=_wrapped(params.seed + index))
            decoder = StreamDecoder(tokenizer, params.stop, params.include_stop_str_in_output)
            answers.append(Answer(index, params, end_ids, RequestSampler(own, prompt_ids), decoder))
        return cls(request_id, prompt, prompt_ids, params, arrival, answers, priority, cache_salt)

    @property
    def finished(self) -> bool:
        return all(answer.finish_reason is not None for answer in self.answers)

    def output(self) -> RequestOutput:
        return RequestOutput(self.request_id, self.prompt, list(self.prompt_ids),
                             [answer.completion() for answer in self.answers], self.finished, self.arrival,
                             self.num_cached_tokens)


def _wrapped(seed: int) -> int:
    """A seed past the largest 64-bit integer goes on at the smallest."""
    return (seed + 2**63) % 2**64 - 2**63
