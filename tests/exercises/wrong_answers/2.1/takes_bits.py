"""Takes bits."""

from minillm.measure import shape

DIAGNOSIS = "bits-for-bytes"


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        return 2 * self.layers * self.kv_size * bytes_per_value / 8
