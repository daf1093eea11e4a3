"""One style for every figure of the course: legible at half width, readable without colour, titled by its finding.

matplotlib is imported here and nowhere else in the package. Series are told apart by luminance, line style and marker
at once, so that a grey print and every kind of colour vision can read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minillm.measure.hardware import Accelerator, Machine, peak, ridge


@dataclass(frozen=True)
class Look:
    """How one series is drawn."""

    color: str
    line: str
    marker: str
    hatch: str


# from dark to light: each keeps its place in grayscale
LOOKS = (
    Look("#1b1f3b", "-", "o", ""),
    Look("#b5432a", "--", "s", "//"),
    Look("#2a7f9e", "-.", "^", ".."),
    Look("#e0a030", ":", "D", "xx"),
)
PREDICTED = dict(color="#777777", linestyle="--", linewidth=1.6, marker="")
GUESSED = dict(color="#b5432a", linestyle="", marker="*", markersize=14)
MEASURED = dict(color="#1b1f3b", linestyle="-", linewidth=2.0, marker="o", markersize=6)


def style() -> None:
    """Set matplotlib to the course's style; call it once at the top of a lesson."""
    mpl.rcParams.update({
        "figure.figsize": (6.4, 4.0),
        "figure.dpi": 80,
        "figure.constrained_layout.use": True,
        "font.size": 12,
        "axes.titlesize": 12.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 11,
        "lines.linewidth": 2.0,
        "lines.markersize": 6,
        "hatch.linewidth": 0.8,
        # same bytes for the same figure, so that a rebuilt lesson changes only where it changed
        "svg.hashsalt": "minillm",
    })


def figure(title: str, x: str, y: str, log: str = "") -> tuple[Figure, Axes]:
    """One set of axes with a title that states the finding, and labels that name quantity and unit.

    `log`: which axes are logarithmic, '', 'x', 'y' or 'xy'.
    """
    fig, axes = plt.subplots()
    finish(axes, title, x, y)
    if "x" in log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    if "y" in log:
        axes.set_yscale("log")
    return fig, axes


def finish(axes: Axes, title: str, x: str, y: str) -> None:
    """Title and labels for axes made elsewhere."""
    axes.set_title(wrap(title))
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def wrap(title: str, width: int = 52) -> str:
    """A long title on two lines, broken between words."""
    if len(title) <= width:
        return title
    cut = title.rfind(" ", 0, width)
    return title[:cut] + "\n" + title[cut + 1 :]


def predicted_and_measured(axes: Axes, x: Sequence[float], predicted: Sequence[float], measured: Sequence[float],
                           guess: tuple[float, float] | None = None) -> None:
    """A prediction, its measurement, and the reader's own guess (x, y) where there is one."""
    axes.plot(x, predicted, **PREDICTED, label="predicted (roofline)")
    axes.plot(x, measured, **MEASURED, label="measured")
    if guess is not None:
        axes.plot([guess[0]], [guess[1]], **GUESSED, label="your guess")
    axes.legend()


def roofline(axes: Axes, hardware: Accelerator | Machine, dtype: str, look: Look = LOOKS[0],
             low: float = 0.1, high: float = 10_000) -> None:
    """The roof of a machine: attainable FLOP/s against arithmetic intensity, its ridge marked."""
    corner, top = ridge(hardware, dtype), peak(hardware, dtype)
    axes.loglog([low, corner, high], [low * hardware.bandwidth, top, top], color=look.color, linestyle=look.line,
                label=f"{hardware.name}, {dtype}: ridge at {corner:.0f} FLOP/byte")
    axes.plot([corner], [top], color=look.color, marker=look.marker)


def bars(axes: Axes, labels: Sequence[str], parts: dict[str, Sequence[float]]) -> None:
    """Stacked horizontal bars, one for each label, in the order given from the top; parts told apart by hatch too."""
    left = [0.0] * len(labels)
    for look, (name, values) in zip(LOOKS, parts.items()):
        axes.barh(labels, values, left=left, color=look.color, hatch=look.hatch, edgecolor="white", label=name)
        left = [a + b for a, b in zip(left, values)]
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    if len(parts) > 1:
        axes.legend()


def block_tables(axes: Axes, tables: dict[str, Sequence[int]], shared: Sequence[int] = (),
                 block_texts: dict[int, str] | None = None) -> None:
    """Block tables as rows of cells, one a page: the block it points to, light if the block is in `shared`.

    `block_texts`: what stands in a block, under its number.
    """
    for row, table in enumerate(tables.values()):
        for page, block in enumerate(table):
            look = LOOKS[3] if block in shared else LOOKS[0]
            axes.barh(row, 0.94, left=page, height=0.7, color=look.color, hatch=look.hatch, edgecolor="white")
            text = f"block {block}" + (f"\n{block_texts[block]}" if block_texts and block in block_texts else "")
            axes.text(page + 0.47, row, text, ha="center", va="center", fontsize=9.5,
                      color="black" if block in shared else "white",
                      bbox={"facecolor": look.color, "edgecolor": "none", "pad": 1.5})
    axes.set_yticks(range(len(tables)), list(tables))
    axes.set_xticks([page + 0.47 for page in range(max(map(len, tables.values())))],
                    [f"page {page}" for page in range(max(map(len, tables.values())))])
    axes.invert_yaxis()
    axes.grid(visible=False)


def slot_timeline(axes: Axes, steps: Sequence[tuple[float, float, dict[int, int]]],
                  last_token: dict[int, float]) -> None:
    """A bar for each slot, from the steps of an engine: who held it, and whether what it computed was wanted.

    steps: (start, end, {sequence: tokens of it}) in seconds; last_token: sequence -> when its last token came. A row
    with several tokens is prefill; a row that ends after that moment computed something that was thrown away. A
    sequence takes the lowest slot that is free and keeps it as long as it is in every step.
    """
    kinds = {"prefill": LOOKS[1], "decode": LOOKS[2], "thrown away": LOOKS[3]}
    spans = _slot_spans(steps, last_token)
    for slot, kind, start, end in spans:
        look = kinds[kind]
        axes.barh(slot, end - start, left=start - steps[0][0], height=0.8, color=look.color, hatch=look.hatch,
                  edgecolor="white", linewidth=0.8)
    axes.set_yticks(range(max(slot for slot, *_ in spans) + 1))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    used = [kind for kind in kinds if any(kind == shown for _, shown, _, _ in spans)]
    axes.legend([plt.Rectangle((0, 0), 1, 1, facecolor=kinds[kind].color, hatch=kinds[kind].hatch, edgecolor="white")
                 for kind in used], used, loc="upper center", ncols=3, bbox_to_anchor=(0.5, -0.22))


def _slot_spans(steps: Sequence[tuple[float, float, dict[int, int]]],
                last_token: dict[int, float]) -> list[tuple[int, str, float, float]]:
    """(slot, kind of work, start, end): as long as a sequence keeps its slot and does one kind of work."""
    slots: dict[int, int] = {}
    spans: list[tuple[int, str, float, float]] = []
    growing: dict[int, int] = {}  # sequence -> its span, by its place in the list
    for start, end, rows in steps:
        slots = {seq: slot for seq, slot in slots.items() if seq in rows}
        growing = {seq: place for seq, place in growing.items() if seq in rows}
        for seq, tokens in rows.items():
            if seq not in slots:
                slots[seq] = next(slot for slot in range(len(rows)) if slot not in slots.values())
            kind = "thrown away" if start >= last_token[seq] else "prefill" if tokens > 1 else "decode"
            if seq not in growing or spans[growing[seq]][1] != kind:
                growing[seq] = len(spans)
                spans.append((slots[seq], kind, start, end))
            spans[growing[seq]] = *spans[growing[seq]][:3], end
    return spans
