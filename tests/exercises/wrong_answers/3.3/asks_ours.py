"""Asks ours."""

from minillm.serving import scheduler

DIAGNOSIS = "forbidden"


def split_budget(uncomputed, budget, chunk_size=None):
    return scheduler.split_budget(uncomputed, budget, chunk_size)
