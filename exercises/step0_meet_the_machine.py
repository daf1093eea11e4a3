"""Step 0, meet the machine: the exercises.

Write in your own copy, mine/exercises/step0_meet_the_machine.py. The commands, in the order in which you need them:

    minillm check 0.1       does it work? if not, the smallest case where it goes wrong
    minillm hint 0.1        one hint more each time, three in all
    minillm solution 0.1    yours and ours side by side (once yours passes, or after three hints)
    minillm reset 0.1       start this one again; what you had is kept in mine/backups
    minillm progress        what is done, what is next

exercises/step0_meet_the_machine.py is generated from the package's source by minillm.course.build.
"""

from __future__ import annotations

# ----------------------------------------------------------------------------
# 0.1 The time a roofline allows
# 5 minutes, difficulty 1 of 3, our answer has 3 lines
# Teaches: A piece of work is bound by arithmetic or by memory traffic; the slower of the two
#   decides.
# Lesson: notebooks/00_meet_the_machine.ipynb, section "The first exercise, together"


def roofline_seconds(flops: float, bytes_moved: float, peak_flops: float, bandwidth: float) -> float:
    """Seconds that a piece of work takes at best on a machine (the roofline model, Williams et al. 2009).

    flops in FLOP, bytes_moved in bytes, peak_flops in FLOP/s, bandwidth in bytes/s. Arithmetic and transfers overlap,
    so the slower of the two decides.
    """
    raise NotImplementedError("exercise 0.1")
