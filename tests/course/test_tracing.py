"""What a kernel loads and stores is seen element by element, and drawn; nothing that it does outside does harm.

This also guards that Triton's interpreter is still as `tracing` takes it to be.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from minillm.course import pictures, tracing
from minillm.course.tracing import ROOM

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled in this process")


@triton.jit
def copy_kernel(x_ptr, out_ptr, begin, count, limit, BLOCK: tl.constexpr):
    """out = x at places begin to begin + count - 1, of a block; loads masked at `limit`, stores at `count`."""
    at = begin + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < limit)
    tl.store(out_ptr + at, x, mask=at < count)


@triton.jit
def add_one_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)


@triton.jit
def every_other_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = 2 * tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))


@triton.jit
def fill_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < 0, other=7))


@triton.jit
def if_kernel(x_ptr, BLOCK: tl.constexpr):
    """Decides once for all of a block, which no compiled kernel may."""
    at = tl.arange(0, BLOCK)
    if at > 0:
        tl.store(x_ptr + at, 1.0)


@triton.jit
def if_one_kernel(x_ptr, BLOCK: tl.constexpr):
    if tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK)), axis=0) > 0:
        tl.store(x_ptr, 5.0)


def touched(counts: np.ndarray) -> dict[int, int]:
    """{place: times}, places counted from the tensor's first element."""
    return {int(place) - ROOM: int(counts[place]) for place in np.flatnonzero(counts)}


def test_every_load_and_store_is_noted() -> None:
    x, out = torch.arange(6.0), torch.zeros(6)
    with tracing.record() as trace:
        copy_kernel[(2,)](x, out, 1, 4, 5, BLOCK=4)
    assert list(trace.seen) == ["x", "out"]
    assert touched(trace.seen["x"].loads) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert touched(trace.seen["out"].stores) == {1: 2, 2: 2, 3: 2}
    assert not trace.seen["x"].stores.any()
    assert not trace.seen["out"].loads.any()
    assert out.tolist() == [0, 1, 2, 3, 0, 0]
    assert trace.told() == "all inside"


def test_what_is_outside_is_counted_and_does_no_harm() -> None:
    memory = torch.arange(12.0)
    x, out = memory[2:5], memory[6:9]
    with tracing.record() as trace:
        copy_kernel[(1,)](x, out, -1, 7, 9, BLOCK=8)
    assert touched(trace.seen["x"].loads) == {place: 1 for place in range(-1, 7)}
    assert touched(trace.seen["out"].stores) == {place: 1 for place in range(-1, 7)}
    assert trace.told() == "5 loads outside x, 5 stores outside out"
    assert memory.tolist() == [0, 1, 2, 3, 4, 5, 2, 3, 4, 9, 10, 11]


def test_what_is_far_from_everything_is_counted_too() -> None:
    x, out = torch.zeros(4), torch.zeros(4)
    with tracing.record() as trace:
        copy_kernel[(1,)](x, out, 10 * ROOM, 20 * ROOM, 10 * ROOM + 1, BLOCK=4)
    assert trace.told() == "1 load and 4 stores outside everything"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8, torch.bool])
def test_nothing_is_right_by_chance(dtype: torch.dtype) -> None:
    """Loaded outside, masked off without other, never written: the same odd value each time; with other, that."""
    odd = {torch.int32: tracing.CHANCE, torch.int8: tracing.CHANCE % 127, torch.bool: True}.get(dtype)
    x, outside, masked = torch.zeros(2, dtype=dtype), torch.zeros(8, dtype=dtype), torch.zeros(8, dtype=dtype)
    with tracing.record():
        copy_kernel[(1,)](x, outside, 0, 8, 8, BLOCK=8)
        copy_kernel[(1,)](x, masked, 0, 8, 1, BLOCK=8)
        unwritten = torch.empty(3, dtype=dtype)
    for value in [*outside[2:], *masked[1:], *(unwritten if dtype != torch.bool else ())]:
        assert bool(value.isnan()) if odd is None else value.item() == odd
    assert [outside[1].item(), masked[0].item()] == [0, 0]
    if dtype not in (torch.bool, torch.bfloat16):  # the interpreter makes no bfloat16 of a number
        out = torch.zeros(2, dtype=dtype)
        with tracing.record():
            fill_kernel[(1,)](x, out, BLOCK=2)
        assert out.tolist() == [7, 7]


def test_rows_that_lie_apart_and_tensors_that_are_written_into() -> None:
    x = torch.zeros(2, 5)
    rows = x[:, :3]
    with tracing.record() as trace:
        add_one_kernel[(2,)](rows, BLOCK=4)
        add_one_kernel[(1,)](rows, BLOCK=2)
    assert x.tolist() == [[2, 2, 1, 0, 0], [1, 1, 1, 0, 0]]
    assert trace.told() == "2 loads and 2 stores outside x"
    assert touched(trace.seen["x"].loads) == {0: 2, 1: 2, **dict.fromkeys(range(2, 8), 1)}


def test_a_tensor_given_twice_is_one() -> None:
    x = torch.arange(4.0)
    with tracing.record() as trace:
        copy_kernel[(1,)](x, x, 0, 4, 4, BLOCK=4)
    assert list(trace.seen) == ["x"]
    assert touched(trace.seen["x"].loads) == touched(trace.seen["x"].stores) == dict.fromkeys(range(4), 1)


def test_what_a_launcher_does_between_two_launches_counts() -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    with tracing.record():
        copy_kernel[(1,)](x, out, 0, 4, 4, BLOCK=4)
        out += 10
        x.zero_()
        copy_kernel[(1,)](x, out, 0, 1, 1, BLOCK=4)
    assert out.tolist() == [0, 11, 12, 13]


def test_afterwards_triton_is_as_it_was() -> None:
    from triton.runtime import interpreter

    methods = [(interpreter.InterpretedFunction, "run"), (interpreter.InterpreterBuilder, "create_masked_load"),
               (interpreter.InterpreterBuilder, "create_masked_store")]
    before = [getattr(holder, name) for holder, name in methods]
    with pytest.raises(ZeroDivisionError), tracing.record():
        assert all(getattr(holder, name) is not method for (holder, name), method in zip(methods, before))
        raise ZeroDivisionError
    assert [getattr(holder, name) for holder, name in methods] == before
    # the arguments that tracing relies on, and that loads and stores without a mask come by here too
    assert list(inspect.signature(before[0]).parameters) == ["self", "args", "grid", "warmup", "kwargs"]
    assert list(inspect.signature(before[1]).parameters)[:4] == ["self", "ptrs", "mask", "other"]
    assert list(inspect.signature(before[2]).parameters)[:4] == ["self", "ptrs", "value", "mask"]


@pytest.mark.parametrize("block", [1, 4])
def test_a_block_is_neither_true_nor_false_but_one_number_is(block: int) -> None:
    from triton.runtime import interpreter

    x, patch = torch.ones(block), interpreter._patch_lang_tensor
    with tracing.record() as trace:
        with pytest.raises(interpreter.InterpreterError, match="a block is neither true nor false"):
            if_kernel[(1,)](x, BLOCK=block)
        if_one_kernel[(1,)](x, BLOCK=block)
        fill_kernel[(1,)](x, x, BLOCK=block)  # Triton's own code asks whether `other` is true
    assert trace.told() == "all inside"
    assert interpreter._patch_lang_tensor is patch
    assert list(inspect.signature(patch).parameters)[:1] == ["tensor"]
    if block > 1:
        if_kernel[(1,)](x, BLOCK=block)  # as Triton has it
    assert x.tolist() == [1] * block if block > 1 else [7]


def test_no_launch_is_said_and_compiled_kernels_are_refused() -> None:
    with tracing.record() as trace:
        torch.empty(3)
    assert trace.told() == "no kernel was launched"
    code = "from minillm.course import tracing\nwith tracing.record():\n    pass\n"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "RuntimeError: kernels are compiled in this process: expected TRITON_INTERPRET=1" in ended.stderr


def launch(begin: int, count: int, limit: int, shape: tuple[int, ...] = (5,), gap: int = 0):
    """A launcher of copy_kernel over tensors of a shape, rows of x `gap` apart."""
    def launcher() -> None:
        x = torch.zeros(*shape[:-1], shape[-1] + gap)[..., : shape[-1]]
        copy_kernel[(1,)](x, torch.zeros(shape), begin, count, limit, BLOCK=8)

    return launcher


def test_a_picture_shows_what_is_missing_and_says_where_what_is_too_much_lies() -> None:
    assert pictures.draw(launch(0, 5, 5), launch(-2, 5, 6), {}) == [
        "      yours   expected",
        "x     rrrrr   rrrrr",
        "out   wwwww   wwwww",
        "loaded outside x: at offsets -2 to -1, 5",
        "stored outside out: at offsets -2 to -1",
        "r loaded   w stored",
    ]
    assert pictures.draw(launch(0, 5, 5), launch(1, 4, 6), {}) == [
        "      yours   expected",
        "x     .rrrr   rrrrr",
        "out   .www.   wwwww",
        "loaded outside x: at offset 5",
        ". untouched   r loaded   w stored",
    ]


def test_a_picture_of_rows_that_lie_apart() -> None:
    assert pictures.draw(launch(0, 6, 7, (2, 3), 1), launch(0, 6, 6, (2, 3), 1), {}) == [
        "         yours   expected",
        "x[0]     rrr     rrr",
        "x[1]     rr.     rrr",
        "out[0]   www     www",
        "out[1]   www     www",
        "loaded outside x: at offset 3",
        ". untouched   r loaded   w stored",
    ]


def test_many_places_outside_are_cut_and_many_rows_make_room_for_them() -> None:
    def every_other() -> None:
        x = torch.zeros(1, 20)[:, :1]
        every_other_kernel[(1,)](x, x, BLOCK=16)

    assert pictures.draw(launch(0, 1, 1, (1,)), every_other, {})[-3:-1] == [
        "loaded outside x: at offsets 2, 4, 6, 8, …", "stored outside x: at offsets 2, 4, 6, 8, …"]
    rows = pictures.draw(launch(0, 8, 8, (16, 1)), launch(-3, 4, 4, (16, 1)), {})
    assert len(rows) <= pictures.LINES
    assert rows[-3:-1] == ["loaded outside x: at offsets -3 to -1", "stored outside out: at offsets -3 to -1"]
    alone = pictures.draw(launch(0, 8, 8, (16, 1)), launch(0, 8, 8, (16, 1), 1), {})
    assert "loaded outside x: at offsets 1, 3, 5, 7" in alone


def test_no_difference_is_a_line_and_many_rows_are_cut() -> None:
    (line,) = pictures.draw(launch(0, 5, 5), launch(0, 5, 5), {})
    assert line.startswith("Each load and store is where it should be")
    few = pictures.draw(launch(0, 8, 8, (8, 1)), launch(0, 8, 7, (8, 1)), {})  # 16 rows, one of which differs
    assert few == ["       yours   expected", "x[7]   .       r", ". untouched   r loaded"]
    cut = pictures.draw(launch(0, 8, 8, (8, 2)), launch(6, 8, 8, (8, 2)), {})
    assert len(cut) <= pictures.LINES
    many = pictures.draw(launch(0, 8, 8, (16, 1)), launch(8, 16, 16, (16, 1)), {})
    assert len(many) == pictures.LINES
    assert many[-2] == "…"


def test_what_was_touched_before_an_error_is_drawn() -> None:
    def failing() -> None:
        launch(0, 5, 5)()
        raise KeyError

    assert pictures.draw(launch(0, 5, 5), failing, {})[0].startswith("Each load")
    assert pictures.draw(launch(0, 5, 5), lambda: None, {}) == []
    wide = pictures.draw(launch(0, 8, 8, (40,)), launch(0, 8, 7, (40,)), {})
    assert wide[1] == "x     rrrrrrr.........................…   rrrrrrrr........................…"
