"""The check of step 0. A reader runs it with: minillm check 0.1"""

from __future__ import annotations

from minillm.course.checks import Case, Check, Mistake


def roofline_cases() -> list[Case]:
    def case(about: str, flops: float, bytes_moved: float, peak_flops: float, bandwidth: float) -> Case:
        return Case(
            about, {"flops": flops, "bytes_moved": bytes_moved, "peak_flops": peak_flops, "bandwidth": bandwidth}
        )

    return [
        case("2 s of arithmetic, 3 s of transfers", 200.0, 30.0, 100.0, 10.0),
        case("4 s of arithmetic, 1 s of transfers", 400.0, 10.0, 100.0, 10.0),
        case("no arithmetic, only a copy", 0.0, 50.0, 100.0, 10.0),
    ]


ROOFLINE = Check(
    "0.1",
    roofline_cases,
    tolerance=1e-9,
    mistakes=(
        Mistake(
            "adds",
            "Arithmetic and transfers go on at the same time: the work is done when the slower of the two is, "
            "not after their sum.",
            like=lambda flops, bytes_moved, peak_flops, bandwidth: flops / peak_flops + bytes_moved / bandwidth,
        ),
        Mistake(
            "faster-decides",
            "That is when the first of the two is done. The work is done when both are.",
            like=lambda flops, bytes_moved, peak_flops, bandwidth: min(flops / peak_flops, bytes_moved / bandwidth),
        ),
        Mistake(
            "peaks-swapped",
            "FLOP are divided by FLOP per second, bytes by bytes per second: look at the units.",
            like=lambda flops, bytes_moved, peak_flops, bandwidth: max(flops / bandwidth, bytes_moved / peak_flops),
        ),
        Mistake(
            "upside-down",
            "Work over speed gives seconds; speed over work gives one over seconds.",
            like=lambda flops, bytes_moved, peak_flops, bandwidth: max(peak_flops / flops, bandwidth / bytes_moved),
        ),
        Mistake(
            "arithmetic-only",
            "Work that moves many bytes for little arithmetic waits for memory: which of your two "
            "times did you leave out?",
            like=lambda flops, bytes_moved, peak_flops, bandwidth: flops / peak_flops,
        ),
        Mistake(
            "transfers-only",
            "Work with much arithmetic for each byte waits for the arithmetic: which of your two "
            "times did you leave out?",
            like=lambda flops, bytes_moved, peak_flops, bandwidth: bytes_moved / bandwidth,
        ),
    ),
)

CHECKS = (ROOFLINE,)
