"""Tokens to text, as they come: never half a character, never a piece of a stop string.

A character of several bytes may be split over tokens, and a stop string too. Both are held back until it is clear what
they are: bytes until the character is whole, text as long as it could still grow into a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class TokenBytes(Protocol):
    """What streaming needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class StreamDecoder:
    """Turns one request's tokens into text that is safe to show.

    `stop`: strings that end the text; `include_stop`: whether the one that did is shown. After `push` has met one,
    `stopped_by` is that string and no more text comes. Special tokens are not shown.
    """

    def __init__(self, tokenizer: TokenBytes, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.include_stop = include_stop
        self.stopped_by: str | None = None
        self.text = ""  # everything shown so far
        self._held = ""  # whole characters that may be the start of a stop string
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that can be shown now, often '' and sometimes more than one word."""
        if self.stopped_by is not None or self.tokenizer.is_special(token_id):
            return ""
        return self._release(self._decoder.decode(self.tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """The rest, once no token follows: text held back, and U+FFFD for a character that never became whole."""
        if self.stopped_by is not None:
            return ""
        shown = self._release(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        if self.stopped_by is not None:
            rest = ""
        self.text += rest
        return shown + rest

    def _release(self, new: str) -> str:
        self._held += new
        hits = [(place, stop) for stop in self.stop if (place := self._held.find(stop)) >= 0]
        if hits:
            place, self.stopped_by = min(hits)  # the one that begins first
            shown = self._held[: place + (len(self.stopped_by) if self.include_stop else 0)]
            self._held = ""
        else:
            keep = max((overlap(self._held, stop) for stop in self.stop), default=0)
            shown = self._held[: len(self._held) - keep]
            self._held = self._held[len(self._held) - keep :]
        self.text += shown
        return shown


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are a beginning of `stop`, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
