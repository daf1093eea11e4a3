"""All by k."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = "rows-of-b"


@triton.jit
def matmul_kernel(a_ptr, b_ptr, out_ptr, M, N, K, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :],
                    mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0)
        b = tl.load(b_ptr + inner[:, None] * K + columns[None, :],
                    mask=(inner[:, None] < K) & (columns[None, :] < N), other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], acc.to(out_ptr.dtype.element_ty),
             mask=(rows[:, None] < M) & (columns[None, :] < N))


def matmul(a, b, block=32):
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    matmul_kernel[(triton.cdiv(m, block), triton.cdiv(n, block))](a, b, out, m, n, k, BLOCK=block)
    return out
