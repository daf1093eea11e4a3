"""One leads to the other."""

import torch


def merge(out_a, lse_a, out_b, lse_b):
    share = torch.sigmoid(lse_b - lse_a).nan_to_num(0).unsqueeze(-1)  # of b; neither part: none
    return out_a + share * (out_b - out_a), torch.logaddexp(lse_a, lse_b)
