"""In kib."""

from minillm.measure import shape

DIAGNOSIS = None


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        return 2 * self.layers * self.kv_size * bytes_per_value / 1024
