"""Parameters that are frozen at the start and trained later (fine-tuning in stages).

DDP averages the gradients of those parameters that wanted one when it wrapped the module. One
that is thawed afterwards would be trained by each rank on its own, without a word, and the
replicas would drift apart. So the gradients of such parameters are averaged here.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist


class ThawedParameters:
    """The parameters DDP did not count, watched for the time when they are trained.

    Args:
        parameters: those of the module, when DDP has just wrapped it; the same order on all ranks.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._frozen = [parameter for parameter in parameters if not parameter.requires_grad]

    def average_gradients(self) -> None:
        """Give the trained ones the mean gradient of all ranks. Called by all ranks alike.

        One that got no gradient on any rank stays without, so that optimisers leave it alone.
        """
        thawed = [parameter for parameter in self._frozen if parameter.requires_grad]
        if not thawed:
            return
        used = torch.tensor([int(parameter.grad is not None) for parameter in thawed])
        used = used.to(thawed[0].device)
        dist.all_reduce(used, op=dist.ReduceOp.MAX)
        for parameter, is_used in zip(thawed, used.tolist(), strict=True):
            if not is_used:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
