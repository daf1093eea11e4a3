"""Step 0, meet the machine: the answers, as the package itself has them.

Generated from the package's source by minillm.course.build; nothing here is edited by hand.
"""

from __future__ import annotations

# ----------------------------------------------------------------------------
# 0.1 The time a roofline allows
# 5 minutes, difficulty 1 of 3, our answer has 3 lines
# Teaches: A piece of work is bound by arithmetic or by memory traffic; the slower of the two
#   decides.
# Lesson: notebooks/00_meet_the_machine.ipynb, section "The first exercise, together"
#
# Notice: max, not a sum: both happen at once. Where the two are equal is the ridge: work with fewer
#   FLOP per byte than peak_flops / bandwidth waits for memory.


def roofline_seconds(flops: float, bytes_moved: float, peak_flops: float, bandwidth: float) -> float:
    """Seconds that a piece of work takes at best on a machine (the roofline model, Williams et al. 2009).

    flops in FLOP, bytes_moved in bytes, peak_flops in FLOP/s, bandwidth in bytes/s. Arithmetic and transfers overlap,
    so the slower of the two decides.
    """
    compute_seconds = flops / peak_flops
    memory_seconds = bytes_moved / bandwidth
    return max(compute_seconds, memory_seconds)
