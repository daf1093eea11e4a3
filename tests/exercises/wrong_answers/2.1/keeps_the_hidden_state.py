"""Keeps the hidden state."""

from minillm.measure import shape

DIAGNOSIS = "hidden-size"


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        return 2 * self.layers * self.hidden * bytes_per_value
