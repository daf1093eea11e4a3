"""What comes back for a request, with vLLM's field names, and when each of its tokens was there."""

from __future__ import annotations

from dataclasses import dataclass

from minillm.decoding.sampling import Logprob
from minillm.measure.metrics import RequestTimes


@dataclass
class CompletionOutput:
    """One answer. `token_ids` holds the end token, if one came; `text` shows neither it nor a stop string.

    finish_reason  'stop' (an end token or a stop string) or 'length' (max_tokens, or the context's end); None: running
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
    """A request with its answers. `arrival`: when it was made, on the clock of the token times."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    arrival: float

    @property
    def times(self) -> RequestTimes:
        """What TTFT, TPOT and ITL are computed from."""
        return RequestTimes(self.arrival, tuple(self.outputs[0].token_times), len(self.prompt_token_ids))
