"""What a cache refuses with."""


class CacheError(ValueError):
    """A step that the cache cannot hold, a sequence or a block that it does not have."""


class PoolExhausted(CacheError):
    """More blocks are asked for than are free or idle."""
