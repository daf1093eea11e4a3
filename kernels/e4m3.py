"""FP8 (E4M3) read from bytes with integer arithmetic: sm_80 has no conversion, so one way serves every chip.

A byte holds 1 sign, 4 exponent and 3 mantissa bits, of which the exponent counts from 7 (Micikevicius et al. 2022).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(codes):
    """Bytes uint8 -> float32, exactly. NaN (0x7f, 0xff) becomes 480 or -480: an encoder that clamps writes neither.

    The sign goes to float32's sign bit, the other seven to its lowest four bits of exponent and highest three of
    mantissa. float32's exponent counts from 127, so this reads as the number times 2^-120; below 2^-6 too, since both
    formats write their smallest numbers without the leading 1.
    """
    wide = codes.to(tl.int8, bitcast=True).to(tl.int32)  # the sign fills the upper bits: one shift moves all eight
    bits = (wide.to(tl.uint32, bitcast=True) << 20) & 0x87F00000
    return bits.to(tl.float32, bitcast=True) * 1329227995784915872903807060280344576.0  # 2^120
