"""By search."""

import itertools

from minillm.course import hunts


def prompts(total):
    for first in range(1, total):
        for tokens in itertools.product((1, 2), repeat=total):
            yield [list(tokens[:first]), list(tokens[first:])]


def smallest_crowd():
    for total in range(4, 8):
        for left in ([1, 2], [1, 1, 1]):
            for arriving in prompts(total - len(left)):
                for num_blocks in range(1, 4):
                    if breaks(num_blocks, left, arriving):
                        return num_blocks, left, arriving
    return None


def breaks(num_blocks, left, arriving):
    if max(len(tokens) for tokens in [left, *arriving]) > 2 * num_blocks:
        return False
    if hunts.let_in_with_a_bug(num_blocks, left, arriving) != [0, 1]:
        return False
    found = [len(prompt) > 2 and prompt[:2] == left[:2] for prompt in arriving]
    return sum((len(prompt) + 1) // 2 for prompt in arriving) - sum(found) + any(found) > num_blocks
