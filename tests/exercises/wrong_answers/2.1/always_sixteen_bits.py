"""Always sixteen bits."""

from minillm.measure import shape

DIAGNOSIS = "always-two-bytes"


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        return 2 * self.layers * self.kv_size * 2
