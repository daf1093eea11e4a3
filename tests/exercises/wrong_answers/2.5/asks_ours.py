"""Asks ours."""

from minillm.cache import prefix

DIAGNOSIS = "forbidden"


class HashIndexMatch(prefix.HashIndex):
    def match(self, token_ids, extra=""):
        return super().match(token_ids, extra)
