# SPDX-License-Identifier: Apache-2.0
"""Parts of a training loop: the run's optimizer, seeds, and steps with a loss scale."""

from __future__ import annotations

import random
from typing import Any, Sequence

import numpy as np
import torch

from ._trainer import Settings


def run_optimizer(parameters: Sequence[torch.Tensor], settings: Settings) -> torch.optim.Optimizer:
    """The optimizer that the run asks for, without any state."""
    wanted, decay = settings.optimizer, settings.weight_decay
    if wanted.name in ("sgd", "nesterov"):
        return torch.optim.SGD(
            parameters,
            settings.lr,
            settings.momentum,
            weight_decay=decay,
            nesterov=wanted.name == "nesterov" and settings.momentum > 0,
        )
    if wanted.name in ("adam", "adamw"):
        kind = torch.optim.Adam if wanted.name == "adam" else torch.optim.AdamW
        betas = (wanted.beta1, wanted.beta2)
        return kind(parameters, settings.lr, betas, wanted.epsilon, decay)
    raise ValueError(f"this version of tributary_fl does not know the optimizer '{wanted.name}'")


def takes_sparse(settings: Settings) -> bool:
    """Whether the run's optimizer takes sparse gradients. A weight decay is of all rows, and PyTorch's
    Adam keeps moments of all of them."""
    return settings.optimizer.name in ("sgd", "nesterov") and not settings.weight_decay


def seed_all(seed: int) -> None:
    """Seeds what models and data sets draw random numbers from."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def grad_scaler(device: torch.device) -> Any:
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type)
    return torch.cuda.amp.GradScaler()


def take_step(optimizer: torch.optim.Optimizer, scaler: Any) -> None:
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def three_of(said: Any) -> tuple[Any, Any, Any]:
    """What eval_step() has returned."""
    if not isinstance(said, tuple) or len(said) != 3:
        raise TypeError(
            f"eval_step() has returned a {type(said).__name__}: it must return three things, the mean "
            "loss over the batch, and the outputs and targets, which metrics compare"
        )
    return said


def counted(loss: torch.Tensor, count: float) -> torch.Tensor:
    """The mean over nothing is not a number: here it is 0."""
    return loss if count else torch.nan_to_num(loss)
