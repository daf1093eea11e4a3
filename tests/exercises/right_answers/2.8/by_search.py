"""By search."""

import itertools

from minillm.course.hunts import reused_with_a_bug


def smallest_prompts():
    for total in range(2, 9):
        for tokens in itertools.product((1, 2), repeat=total):
            for cut in range(1, total):
                earlier, later = list(tokens[:cut]), list(tokens[cut:])
                for place, block in enumerate(reused_with_a_bug(earlier, later)):
                    if earlier[: 2 * block] != later[: 2 * place]:
                        return earlier, later
    return None
