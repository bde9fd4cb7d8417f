# SPDX-License-Identifier: Apache-2.0
"""How many predictions a mean loss is a mean over: what it weighs in a mean of several."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.nn import functional as F

Count = Callable[[Any], Any]
IGNORED = -100  # The target that torch ignores by default.


def known_count(loss: Any) -> Count | None:
    """For the losses of torch that leave out targets or weigh classes: the number of predictions
    for the targets of a batch, or the sum of their weights. None: not one of them."""
    if loss in (F.cross_entropy, F.nll_loss):
        return lambda targets: _count(targets, IGNORED, None)
    if isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)) and loss.reduction == "mean":
        return lambda targets: _count(targets, loss.ignore_index, loss.weight)
    return None


def _count(targets: Any, ignored: int, weight: torch.Tensor | None) -> float | None:
    if not isinstance(targets, torch.Tensor):
        return None
    if targets.is_floating_point():  # Probabilities of the classes: no target is left out.
        return targets.numel() / targets.shape[1] if targets.dim() > 1 else None
    is_counted = targets != ignored
    if weight is None:
        return int(is_counted.sum())
    classes = targets[is_counted]
    return float(weight.to(classes.device)[classes].sum(dtype=torch.float64))
