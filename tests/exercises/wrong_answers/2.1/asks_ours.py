"""Asks ours."""

from minillm.measure import shape

DIAGNOSIS = "forbidden"


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        return super().kv_bytes_per_token(bytes_per_value)
