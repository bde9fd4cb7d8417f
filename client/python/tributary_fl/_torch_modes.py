# SPDX-License-Identifier: Apache-2.0
"""Training and evaluation mode of a model's parts: a user may have put some into evaluation mode for
good, such as BatchNorms whose statistics must not move."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Iterator

import torch


class Modes:
    """The modes that a model's parts have when this is made, which are those to train in.

    A model that is in evaluation mode as a whole, as from_pretrained() gives it, is trained in
    training mode; only layers whose parameters are all frozen stay in evaluation mode."""

    def __init__(self, model: torch.nn.Module):
        self._model = model
        parts = list(model.named_modules())
        is_choice = any(part.training for _, part in parts)
        fixed = {
            name: part
            for name, part in parts
            if not part.training and (is_choice or _is_frozen(part))
        }
        self._fixed = list(fixed.values())
        dropouts = [name for name, part in fixed.items() if _drops(part)]
        if dropouts:
            warnings.warn(
                f"{len(dropouts)} dropout layers, such as '{dropouts[0]}', are in evaluation mode "
                "and stay so: nothing is dropped there in training. If that is not wanted, call "
                "model.train() before you make the Trainer"
            )

    def train(self) -> None:
        """Puts the model into training mode by its own method, which may leave out parts, and then
        those parts back into evaluation mode that were in it."""
        self._model.train()
        for part in self._fixed:
            part.training = False


@contextlib.contextmanager
def explained_batch_norm(model: torch.nn.Module, examples: Callable[[], int]) -> Iterator[None]:
    """In this context the error of a BatchNorm that gets one example says what helps."""
    try:
        yield
    except ValueError as error:
        kind = torch.nn.modules.batchnorm._BatchNorm
        has_batch_norm = any(isinstance(part, kind) and part.training for part in model.modules())
        if not has_batch_norm or examples() != 1:
            raise
        raise ValueError(
            f"a BatchNorm can't train on a batch of one example ({error}): use larger "
            "batches (fl-server --batch-size, drop_last=True of a DataLoader, "
            "eval_batch_size for gradients of all examples), or put it into evaluation mode"
        ) from error


def _is_frozen(part: torch.nn.Module) -> bool:
    own = list(part.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def _drops(part: Any) -> bool:
    return isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p > 0


@contextlib.contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """In this context the model is in evaluation mode. After it each part has the mode that it had."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, is_training in before:
            part.training = is_training
