# SPDX-License-Identifier: Apache-2.0
"""What becomes of gradients between a backward pass and the optimizer's step."""

from __future__ import annotations

import warnings

import torch

from ._torch_spread import Spread
from ._torch_tensors import Named, own
from ._trainer import Task


def dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


class Gradients:
    """The gradients of a round's steps, clipped where the run asks for it, with what the method adds
    to them: FedProx's term, which is mu * (w - w_start) with the values that the parameters have when
    this is made, and the task's correction of each parameter, if it has any.

    Sparse gradients, as those of an Embedding with sparse=True, become dense where there are terms,
    which are of all rows, where they are clipped, or where the optimizer takes no sparse ones.

    speaks: whether this rank is the one that reads files."""

    def __init__(
        self, parameters: Named, spread: Spread, task: Task, speaks: bool, takes_sparse: bool
    ):
        self._parameters, self._mu = parameters, task.settings.proximal_mu
        self._clip_norm = task.settings.clip_norm
        self._start = [own(p).clone() for _, p in parameters] if self._mu else []
        self._corrections: list[torch.Tensor] = []
        if task.request.get("correction"):
            self._corrections = [torch.empty_like(own(p)) for _, p in parameters]
            named = [(name, part) for (name, _), part in zip(parameters, self._corrections)]
            spread.load(named, task.correction() if speaks else None)
        self._has_terms = bool(self._start or self._corrections)
        self._makes_dense = self._has_terms or self._clip_norm > 0 or not takes_sparse
        self._made_dense: list[torch.Tensor] = []

    def zero(self, optimizer: torch.optim.Optimizer) -> None:
        """Before the backward passes of a step."""
        optimizer.zero_grad()
        for parameter in self._made_dense:  # A DistributedDataParallel wants it sparse again.
            parameter.grad = None
        self._made_dense.clear()

    def finish(self) -> None:
        """After them: makes the gradients that the optimizer gets."""
        with torch.no_grad():
            if self._makes_dense:
                self._make_dense()
            if self._clip_norm > 0:
                torch.nn.utils.clip_grad_norm_([p for _, p in self._parameters], self._clip_norm)
            if self._has_terms:
                self._add_terms()

    def _make_dense(self) -> None:
        for name, parameter in self._parameters:
            if parameter.grad is None or not parameter.grad.is_sparse:
                continue
            warnings.warn(
                f"the gradient of '{name}' is sparse, and is made dense, as the method or the "
                "optimizer of this run needs it: it then takes as much memory as the parameter"
            )
            parameter.grad = dense(parameter.grad)
            self._made_dense.append(parameter)

    def _add_terms(self) -> None:
        for at, (_, parameter) in enumerate(self._parameters):
            if parameter.grad is None:  # It took no part in the loss.
                parameter.grad = torch.zeros_like(parameter)
            gradient = own(parameter.grad)
            if self._start:
                gradient.add_(own(parameter) - self._start[at], alpha=self._mu)
            if self._corrections:
                gradient.add_(self._corrections[at])
