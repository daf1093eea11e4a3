"""In place."""

DIAGNOSIS = "input-changed"


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    first, second = x[..., :half].clone(), x[..., half:].clone()
    x[..., :half] = first * cos[:, None] - second * sin[:, None]
    x[..., half:] = second * cos[:, None] + first * sin[:, None]
    return x
