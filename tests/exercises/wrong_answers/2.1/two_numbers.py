"""Two numbers."""

from minillm.measure import shape

DIAGNOSIS = "type"


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        size = self.layers * self.kv_size * bytes_per_value
        return size, size
