"""Layer by layer."""

from minillm.measure import shape


class ModelShapeKvBytesPerToken(shape.ModelShape):
    def kv_bytes_per_token(self, bytes_per_value=2.0):
        total = 0.0
        for _ in range(self.layers):
            for _ in ("k", "v"):
                total += self.kv_heads * self.head_dim * bytes_per_value
        return total
