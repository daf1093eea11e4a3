"""Which of several replicas takes a request: decided once, when it arrives, from what a router can know.

A replica's load is the tokens outstanding there: prompt and asked-for output of every request that has not ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from minillm.measure.arguments import check_whole
from minillm.serving.scheduler import Scheduler

ROUTES = ("round-robin", "least-loaded", "prefix-aware")
MARGIN = 4096  # tokens


class Router:
    """Spreads requests over replicas, each with a scheduler of its own.

    round-robin   in turn
    least-loaded  to the fewest tokens outstanding
    prefix-aware  to whom knows the longest beginning of the prompt, of those whose load is at most `margin` tokens
                  above the least: a hit saves the prefill of its tokens, but is not worth any wait

    Ties go to the lower load, then to the first replica. Raises ValueError for a route that is none, no replica, a
    margin that is no whole number from 0 on, or prefix-aware routing to replicas without a prefix index.
    """

    def __init__(self, route: str, schedulers: Sequence[Scheduler], margin: int = MARGIN) -> None:
        if route not in ROUTES:
            raise ValueError(f"route is {route!r}: expected one of {', '.join(ROUTES)}")
        if not schedulers:
            raise ValueError("a router of no replicas: expected at least one")
        check_whole("margin", margin, 0)
        if route == "prefix-aware" and any(scheduler.tables.index is None for scheduler in schedulers):
            raise ValueError("route is 'prefix-aware': expected replicas with a prefix index")
        self.route = route
        self.schedulers = schedulers
        self.margin = margin
        self.loads = [0] * len(schedulers)
        self._turn = 0

    def choose(self, prompt_ids: Sequence[int]) -> int:
        """The replica to send this prompt to."""
        if self.route == "round-robin":
            self._turn += 1
            return (self._turn - 1) % len(self.loads)
        if self.route == "least-loaded":
            return self.loads.index(min(self.loads))
        most = min(self.loads) + self.margin
        near = [place for place, load in enumerate(self.loads) if load <= most]
        return min(near, key=lambda place: (-self._known(place, prompt_ids), self.loads[place]))

    def sent(self, replica: int, tokens: int) -> None:
        """A request of so many tokens, prompt and output, was taken there."""
        self.loads[replica] += tokens

    def ended(self, replica: int, tokens: int) -> None:
        """It has ended."""
        self.loads[replica] -= tokens

    def _known(self, replica: int, prompt_ids: Sequence[int]) -> int:
        """Tokens of the prompt that a replica has K and V of."""
        return self.schedulers[replica].tables.index.match(prompt_ids)[0]
