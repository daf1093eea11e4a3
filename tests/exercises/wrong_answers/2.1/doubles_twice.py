"""Doubles twice."""

from minillm.measure import shape

DIAGNOSIS = "k-and-v-twice"


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        both = 2 * self.kv_size
        return 2 * self.layers * both * bytes_per_value
