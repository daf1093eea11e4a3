"""Forgets v."""

from minillm.measure import shape

DIAGNOSIS = "k-without-v"


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        return self.layers * self.kv_size * bytes_per_value
