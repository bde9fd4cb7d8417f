# SPDX-License-Identifier: Apache-2.0
"""What a method adds to the gradients of each step."""

from __future__ import annotations

from typing import Callable, Sequence

import torch

from ._torch_tensors import own


def gradient_terms(
    parameters: Sequence[torch.Tensor], mu: float, corrections: Sequence[torch.Tensor]
) -> Callable[[], None]:
    """A function that adds a round's terms to the parameters' gradients: FedProx's, which is
    mu * (w - w_start) with the values that the parameters have now, and a correction of each
    parameter, if there are any."""
    start = [own(parameter).clone() for parameter in parameters] if mu else []
    if not start and not corrections:
        return lambda: None

    def add() -> None:
        with torch.no_grad():
            for at, parameter in enumerate(parameters):
                if parameter.grad is None:  # It took no part in the loss.
                    parameter.grad = torch.zeros_like(parameter)
                gradient = own(parameter.grad)
                if start:
                    gradient.add_(own(parameter) - start[at], alpha=mu)
                if corrections:
                    gradient.add_(corrections[at])

    return add
