"""Asks ours."""

from minillm.serving import scheduler

DIAGNOSIS = "forbidden"


def choose_victim(running):
    return scheduler.choose_victim(running)
