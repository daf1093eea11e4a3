"""AsyncLLM: the same engine for callers that come and go while it runs. One thread steps it; streams are awaited."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import torch

from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM, Message, StreamDelta
from minillm.serving.request import Request


@dataclass
class _Stream:
    """A request, and where its caller awaits its text: a queue of StreamDelta, or of the exception it ended with."""

    request: Request
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue
    joined: bool = False

    def put(self, item: StreamDelta | BaseException) -> None:
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)
        except RuntimeError:  # the caller's event loop is closed: nobody is left to tell
            pass


class AsyncLLM:
    """Serves an `LLM`, which must not be used in any other way until `close`.

    Requests are added and aborted from any event loop, at any time; both take effect between two steps. Use it as an
    async context manager, or call `close` in the end.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._streams: dict[str, _Stream] = {}
        self._orders: deque[tuple[str, _Stream]] = deque()  # "add" and "abort", in turn
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="minillm-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def generate(self, prompt: str | Sequence[int] | Sequence[Message], params: SamplingParams | None = None, *,
                 request_id: str | None = None, priority: int = 0, cache_salt: str = "") -> AsyncIterator[StreamDelta]:
        """Text piece by piece as it comes; the last StreamDelta holds the whole output.

        With n > 1 nothing comes before the last. The request is checked and joins at once; whoever stops iterating, or
        drops it before that, aborts it. Raises ValueError for bad input or an id in use, RuntimeError after `close`.
        """
        if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], dict):
            prompt = self.llm.render(prompt)
        request = self.llm.request(prompt, params or SamplingParams(), priority, cache_salt, request_id)
        stream = _Stream(request, asyncio.get_running_loop(), asyncio.Queue())
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine is closed: expected an open one")
            if request.request_id in self._streams:
                raise ValueError(f"request '{request.request_id}' is under way: expected a new id")
            self._streams[request.request_id] = stream
            self._order("add", stream)
        deltas = self._deltas(stream)
        weakref.finalize(deltas, self._leave, stream).atexit = False  # one that is never begun runs no `finally`
        return deltas

    def abort(self, request_id: str) -> None:
        """End a request; its stream ends with what there is, finish_reason 'abort'.

        Raises ValueError for an id that is not there: never added, or ended.
        """
        with self._changed:
            if request_id not in self._streams:
                raise ValueError(f"request '{request_id}' is not under way: expected one that was added and has not "
                                 "ended")
            self._order("abort", self._streams[request_id])

    def close(self) -> None:
        """Abort whatever is under way and stop the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    async def _deltas(self, stream: _Stream) -> AsyncIterator[StreamDelta]:
        try:
            while True:
                item = await stream.queue.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                if item.output is not None:
                    return
        finally:  # also when the caller breaks off or is cancelled
            self._leave(stream)

    def _leave(self, stream: _Stream) -> None:
        """Nobody listens to it any more."""
        with self._changed:
            if self._under_way(stream):
                self._order("abort", stream)

    def _order(self, what: str, stream: _Stream) -> None:
        self._orders.append((what, stream))
        self._changed.notify()

    def _under_way(self, stream: _Stream) -> bool:
        """Whether it has not ended; its id may be another stream's by now."""
        return self._streams.get(stream.request.request_id) is stream

    def _run(self) -> None:
        try:
            if self.llm.device.type == "cuda":  # a thread begins on the first GPU, and Triton launches on the current
                torch.cuda.set_device(self.llm.device)
            self._serve()
        except BaseException as error:  # a defect: nobody may be left waiting for a thread that is gone
            with self._changed:
                self._closed = True
            for stream in list(self._streams.values()):
                self._end(stream, error)
            raise

    def _serve(self) -> None:
        engine = self.llm.engine
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._orders or engine.has_unfinished)
                while self._orders:
                    self._obey(*self._orders.popleft())
                if self._closed:
                    break
            if engine.has_unfinished:
                self._step()
        for stream in list(self._streams.values()):
            self._obey("abort", stream)

    def _obey(self, what: str, stream: _Stream) -> None:
        """Carry out an order, between two steps."""
        if what == "add":
            try:
                self.llm.engine.add(stream.request)
                stream.joined = True
            except Exception as error:
                self._end(stream, error)
        elif self._under_way(stream):
            self.llm.engine.abort(stream.request.request_id)
            self._finish(stream)

    def _step(self) -> None:
        """One step. If it fails, the requests that it ended get its exception, and the others go on.

        If it ended none, the next one would fail alike: then all get it.
        """
        engine = self.llm.engine
        try:
            touched = engine.step()
        except Exception as error:
            lost = [name for name, one in list(self._streams.items()) if one.joined and name not in engine.requests]
            self._fail(lost or list(engine.requests), error)
            return
        for request in touched:
            stream = self._streams[request.request_id]
            text = "".join(text for _, text in request.events)
            request.events.clear()
            if request.finished:
                self._finish(stream, text)
            elif text and request.params.n == 1:
                stream.put(StreamDelta(text))

    def _fail(self, request_ids: list[str], error: Exception) -> None:
        for request_id in request_ids:
            if request_id in self.llm.engine.requests:
                self.llm.engine.abort(request_id)
            self._end(self._streams[request_id], error)

    def _finish(self, stream: _Stream, text: str = "") -> None:
        rest = [answer.close() for answer in stream.request.answers]
        self._end(stream, StreamDelta(text + rest[0] if len(rest) == 1 else "", stream.request.output()))

    def _end(self, stream: _Stream, item: StreamDelta | BaseException) -> None:
        with self._changed:
            del self._streams[stream.request.request_id]
        stream.put(item)
