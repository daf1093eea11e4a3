"""Asks ours."""

from minillm.cache import tables

DIAGNOSIS = "forbidden"


def make_writable(pool, table, start, end):
    return tables.make_writable(pool, table, start, end)
