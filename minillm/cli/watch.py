"""What `bench --watch` draws: a slot a row, the block pool as a bar. Everything comes from the steps' records."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minillm.cli.lines import count_of, duration

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.text import Text

    from minillm.serving.engine import StepRecord

PERIOD = 0.1  # seconds between two drawings
RECENT = 20  # steps that tokens/s looks back on
BAR = 24  # cells


@dataclass
class Seen:
    """One sequence, as far as the records tell.

    place          the request's place in the workload
    known          tokens that have to be in the cache before the next one comes: the prompt, and what was generated
    computed       tokens that are
    """

    place: int
    prompt_tokens: int
    output_tokens: int
    known: int
    computed: int = 0

    @property
    def made(self) -> int:
        """Output tokens so far; in a batch that is fixed, those thrown away too."""
        return self.known - self.prompt_tokens

    @property
    def phase(self) -> str:
        if self.made >= self.output_tokens:
            return "ended"  # its row goes on: only where a batch is fixed
        if self.known > self.computed + 1 or self.made == 0:
            return "prompt" if self.made == 0 else "again"  # again: preempted, so computed a second time
        return "decode"


class Board:
    """The state of the slots after some records: the same records always give the same picture.

    slots: sequences that run at once. blocks: of the KV pool, 0 if there is none. fixed: rows of ended answers stay
    until their whole batch has ended (static and dynamic batching).
    """

    def __init__(self, slots: int, blocks: int, fixed: bool = False) -> None:
        self.slots: list[int | None] = [None] * slots
        self.blocks = blocks
        self.fixed = fixed
        self.seen: dict[int, Seen] = {}
        self.steps = self.ended = self.preemptions = 0
        self.last: StepRecord | None = None
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=RECENT)  # start, end, output tokens of a step

    def add(self, seq: int, place: int, prompt_tokens: int, output_tokens: int) -> None:
        """Sequence `seq` stands for this request; before any record that names it."""
        self.seen[seq] = Seen(place, prompt_tokens, output_tokens, known=prompt_tokens)

    def take(self, record: StepRecord) -> None:
        """Account for a step."""
        self.last, self.steps, self.preemptions = record, self.steps + 1, self.preemptions + len(record.preempted)
        here = {seq for seq, _, _ in record.rows}
        for slot, seq in enumerate(self.slots):
            if seq in record.preempted or (self.fixed and seq not in here):
                self.slots[slot] = None
        for seq in (seq for seq, _, _ in record.rows if seq not in self.slots):
            self.slots[self.slots.index(None)] = seq
        made = sum(self._grow(seq, start + count) for seq, start, count in record.rows)
        self._recent.append((record.start, record.end, made))

    def _grow(self, seq: int, computed: int) -> int:
        """A row of a step; returns 1 if a token came of it that somebody wants."""
        one = self.seen[seq]
        one.computed = computed
        if computed < one.known:
            return 0
        one.known += 1
        if one.made == one.output_tokens:
            self.ended += 1
            if not self.fixed:
                self.slots[self.slots.index(seq)] = None
        return int(one.made <= one.output_tokens)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the time of the last steps, pauses included."""
        if not self._recent:
            return 0.0
        return sum(made for _, _, made in self._recent) / max(1e-9, self._recent[-1][1] - self._recent[0][0])

    def view(self, height: int = 24) -> Group:
        """The picture, at most `height` lines high."""
        from rich.console import Group
        from rich.text import Text

        shown = self.slots if len(self.slots) <= height - 4 else self.slots[: height - 5]
        lines = [Text(f"{'slot':>4}  {'request':>7}  {'phase':<6}  tokens", style="bold")]
        lines += [self._slot(number, seq) for number, seq in enumerate(shown)]
        if len(shown) < len(self.slots):
            busy = sum(seq is not None for seq in self.slots[len(shown):])
            lines.append(Text(f"      and {count_of(len(self.slots) - len(shown), 'slot')} more, {busy} of them busy"))
        if self.blocks:
            lines.append(self._pool())
        return Group(*lines, *(Text(line) for line in self._summary()))

    def _slot(self, number: int, seq: int | None) -> Text:
        from rich.text import Text

        if seq is None:
            return Text(f"{number:>4}  {'-':>7}", style="dim")
        one = self.seen[seq]
        if one.phase in ("prompt", "again"):
            done, of, what = one.computed, one.known, "computed"
        else:
            done, of, what = min(one.made, one.output_tokens), one.output_tokens, "out"
        line = Text(f"{number:>4}  {one.place:>7}  {one.phase:<6}  ")
        style = {"prompt": "cyan", "again": "yellow", "decode": "green", "ended": "dim"}[one.phase]
        line.append(bar([(done, "█")], of), style=style)
        return line.append(f" {done:,} of {of:,} {what}")

    def _pool(self) -> Text:
        from rich.text import Text

        held, idle = (self.last.held, self.last.idle) if self.last else (0, 0)
        line = Text(f"{'blocks':<23}")
        line.append(bar([(held, "█"), (idle, "▒")], self.blocks), style="magenta")
        return line.append(f" {held:,} held, {idle:,} idle, {self.blocks - held - idle:,} free")

    def _summary(self) -> list[str]:
        last = self.last
        return [f"waiting {last.waiting if last else 0}   ended {self.ended}   preempted {self.preemptions}   "
                f"step {self.steps}, {duration(last.seconds) if last else '-'}   "
                f"{self.tokens_per_second:,.1f} tokens/s"]


def bar(parts: list[tuple[int, str]], of: int, cells: int = BAR) -> str:
    """`██▒···`: each part's share of `of` in its own letter; whatever is more than nothing shows a cell."""
    drawn, reached = "", 0
    for count, letter in parts:
        reached += count
        end = max(len(drawn) + (count > 0), cells * reached // of)
        drawn += letter * (end - len(drawn))
    return drawn[:cells].ljust(cells, "·")


@contextmanager
def drawing(board: Board, out: Console) -> Iterator[Callable[[StepRecord], None]]:
    """A function to call with each record: it draws the board, a few times a second. The picture goes at the end."""
    from rich.live import Live

    with Live(board.view(out.height), console=out, auto_refresh=False, transient=True) as live:
        drawn = 0.0

        def on_step(record: StepRecord) -> None:
            nonlocal drawn
            board.take(record)
            if time.perf_counter() - drawn > PERIOD:
                live.update(board.view(out.height), refresh=True)
                drawn = time.perf_counter()

        yield on_step
