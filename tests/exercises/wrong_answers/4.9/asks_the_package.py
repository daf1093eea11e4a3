"""Asks the package."""

from minillm.attention import flash

DIAGNOSIS = "forbidden"


def online_softmax_update(scores, v, m, total, acc):
    return flash.online_softmax_update(scores, v, m, total, acc)
