"""Weights laid out for the CPU: faster matrix products of few rows, in float32.

oneDNN, the library behind torch on a CPU, multiplies from tiles of W rather than from its rows. `linear` hands it, or
MKL, the rows anew at every call; here they are put into tiles once, when the model is loaded. A step of one to a few
dozen rows (decode, a chunk behind a cached prefix) gains most. From several hundred rows on plain products are as fast
or a little faster, but W is kept only once.

For inference: a packed product has no gradient, and a packed model cannot be deep-copied, moved or saved. `zoo.load`
packs nothing; LLM packs the models that it loads itself.
"""

from __future__ import annotations

import torch
from torch import nn

from minillm.model import layers
from minillm.model.transformer import Transformer


def supported() -> bool:
    """True if this build of torch has oneDNN and the two operators: the usual builds for CPUs do."""
    # torch.compile calls them when it freezes a model; torch has no public name for them
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))


class PackedLinear(nn.Module):
    """y = x·Wᵀ + b, like layers.Linear, with W [out, in] kept in oneDNN's tiles.

    weight [out, in] and bias [out], float32 on a CPU: else ValueError. The weight is copied, so that a later change to
    it changes nothing here; the bias is not.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        check(weight, "weight")
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())  # opaque: tiles, maybe padded
        self.bias = bias

    @property
    def weight(self) -> torch.Tensor:
        """W [out, in] out of its tiles, the same numbers: a copy, made at each call."""
        return self.packed.to_dense()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # "none": nothing (an activation, say) is fused to the product
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")  # [T, in] -> [T, out]


def pack(model: Transformer) -> None:
    """Replace every layers.Linear of a float32 model on a CPU, and its head, by a packed one; the plain ones are freed.

    A tied head gets packed weights of its own beside the embedding, whose rows are looked up: V × hidden × 4 bytes
    more. A model that is packed already stays as it is. ValueError, with nothing changed, for another dtype or device
    or where torch lacks the operators.
    """
    check(model.embed_tokens.weight, "model")
    plain = [(parent, name) for parent in model.modules() for name, child in parent.named_children()
             if type(child) is layers.Linear]
    for parent, name in plain:
        check(getattr(parent, name).weight, name)
    for parent, name in plain:  # one at a time: at no point are there two copies of more than one weight
        linear = getattr(parent, name)
        setattr(parent, name, PackedLinear(linear.weight, linear.bias))
    if model.lm_head is None:
        model.lm_head = PackedLinear(model.embed_tokens.weight)


def pack_where_faster(model: Transformer) -> None:
    """`pack` a float32 model on a CPU where torch has the operators; leave any other as it is."""
    if supported() and model.device.type == "cpu" and model.dtype == torch.float32:
        pack(model)


def check(tensor: torch.Tensor, name: str) -> None:
    """ValueError unless `tensor` can be packed here."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise ValueError(f"{name} is {str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}: expected "
                         "float32 on cpu, to be packed")
    if not supported():
        raise ValueError(f"torch is {torch.__version__}, without oneDNN's packed products: expected a build with them")
