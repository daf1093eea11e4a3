"""From the query heads."""

from minillm.measure import shape


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        group = self.heads // self.kv_heads
        return 2 * bytes_per_value * self.layers * self.q_size / group
