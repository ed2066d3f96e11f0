"""The weight of a rank's loss in a ragged batch.

DDP takes the mean of the ranks' gradients, each the mean over the rank's own n_r samples.
One device would take the mean over all R = sum n_r. So rank r's gradient is scaled by
w_r = n_r * world / R: (1/world) sum_r w_r g_r = (1/R) sum_r n_r g_r. In full batches every
w_r is 1 and nothing is touched. A rank without a sample has w_r = 0 and takes part in the
collectives with a repeated sample. (Losses that are a sum, or that compare samples of a
batch with each other, have no such weight; `doctor` and the support table say so.)
"""

from __future__ import annotations

import torch


def weigh(loss: torch.Tensor, weight: float) -> None:
    """Scale the gradient that will flow back from `loss` by `weight`."""
    if weight == 1.0 or not loss.requires_grad:
        return
    loss.register_hook(lambda gradient: gradient * weight)
