"""Streaming: whole characters only, no piece of a stop string, and in the end exactly the whole text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import END, ByteTokenizer

from minillm.decoding.streaming import StreamDecoder

TOKENIZER = ByteTokenizer()
texts = st.text(alphabet="ab<|>é€😀\n", max_size=30)


def pieces(decoder: StreamDecoder, ids) -> list[str]:
    return [decoder.push(i) for i in ids] + [decoder.finish()]


@given(st.binary(max_size=60))
def test_the_pieces_are_the_whole_whatever_the_bytes(data: bytes) -> None:
    decoder = StreamDecoder(TOKENIZER)
    shown = pieces(decoder, data)
    assert "".join(shown) == decoder.text == TOKENIZER.decode(data)


@given(texts)
def test_no_piece_of_a_good_text_holds_a_broken_character(text: str) -> None:
    shown = pieces(StreamDecoder(TOKENIZER), text.encode())
    assert "".join(shown) == text
    assert all("\ufffd" not in piece for piece in shown)


@given(texts, st.lists(st.text(alphabet="ab<|>é", min_size=1, max_size=4), max_size=3), st.booleans())
def test_a_stop_string_ends_the_text_where_it_begins(text: str, stop: list[str], include: bool) -> None:
    """Against the whole text: cut at the stop that completes first, and never show a piece that is taken back."""
    decoder = StreamDecoder(TOKENIZER, stop, include)
    shown, so_far = [], ""
    for i in text.encode():
        shown.append(decoder.push(i))
        so_far += shown[-1]
        assert text.startswith(so_far)
        if decoder.stopped_by is not None:
            break
    shown.append(decoder.finish())
    found = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    if not found:
        assert decoder.stopped_by is None
        assert "".join(shown) == text
        return
    first_end = min(found)[0]
    begin, stopped_by = min((start, s) for end, start, s in found if end == first_end)
    assert decoder.stopped_by == stopped_by
    assert "".join(shown) == decoder.text == text[: begin + (len(stopped_by) if include else 0)]


def test_a_stop_string_over_three_tokens_is_never_seen() -> None:
    decoder = StreamDecoder(TOKENIZER, ["END"])
    assert [decoder.push(i) for i in b"goENEND!"] == ["g", "o", "", "", "EN", "", "", ""]
    assert decoder.stopped_by == "END"
    assert decoder.text == "goEN"


def test_text_held_back_for_a_stop_that_never_came_is_shown_at_the_end() -> None:
    decoder = StreamDecoder(TOKENIZER, ["stop!"])
    assert "".join(decoder.push(i) for i in b"do not stop") == "do not "
    assert decoder.finish() == "stop"


def test_half_a_character_at_the_end_is_shown_as_broken_and_special_tokens_are_not_shown() -> None:
    decoder = StreamDecoder(TOKENIZER)
    assert pieces(decoder, [*b"a", END, *"é".encode()[:1]]) == ["a", "", "", "\ufffd"]


@pytest.mark.parametrize("stop", [(), ("zzz",), ("aaaaab",)])
def test_work_per_token_does_not_grow_with_the_text(stop) -> None:
    """Only what is held back is searched: never more than a stop string's length."""
    decoder = StreamDecoder(TOKENIZER, stop)
    generator = random.Random(0)
    for _ in range(2000):
        decoder.push(ord(generator.choice("ab")))
        assert len(decoder._held) < max(map(len, stop), default=1)
