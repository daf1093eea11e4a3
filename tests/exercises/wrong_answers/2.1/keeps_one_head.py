"""Keeps one head."""

from minillm.measure import shape

DIAGNOSIS = "one-head"


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        return 2 * self.layers * self.head_dim * bytes_per_value
