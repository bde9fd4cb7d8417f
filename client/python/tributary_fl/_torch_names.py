# SPDX-License-Identifier: Apache-2.0
"""The names of a model's tensors, which do not depend on what the model is wrapped in: torch.compile
puts "_orig_mod." before all names of what it compiles, DistributedDataParallel "module."."""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterator

import torch

# The class of each kind of wrapper, and the attribute that has the inner model.
WRAPPERS = {
    "torch.nn.parallel.DataParallel": "module",
    "torch.nn.parallel.DistributedDataParallel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.optim.swa_utils.AveragedModel": "module",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper": (
        "_checkpoint_wrapped_module"
    ),
}


def _inner_name(module: Any) -> str | None:
    """The attribute of a wrapper that has the inner model; None for other modules."""
    for name, inner in WRAPPERS.items():
        place, _, kind = name.rpartition(".")
        # A program that has wrapped a model has loaded the place. Not every PyTorch has all kinds.
        if isinstance(module, getattr(sys.modules.get(place), kind, ())):
            return inner
    return None


def unwrapped(model: Any) -> Iterator[Any]:
    """The model, what it wraps, what that wraps, and so on; the module itself is the last one."""
    yield model
    while (inner := _inner_name(model)) is not None:
        model = getattr(model, inner)
        yield model


def _plain_names(model: torch.nn.Module) -> Callable[[str], str]:
    """A function that takes what wrappers have added out of the name of a tensor."""
    added = [
        (f"{path}." if path else "", f"{inner}.")
        for path, part in model.named_modules(remove_duplicate=False)
        if (inner := _inner_name(part)) is not None
    ]
    added.sort(key=lambda item: -len(item[0]))  # So that the paths before stay as they are.

    def plain(name: str) -> str:
        for path, inner in added:
            if name.startswith(path + inner):
                name = path + name[len(path + inner) :]
        return name

    return plain


def named_parameters(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters in their order, a tied one under its first name."""
    plain = _plain_names(model)
    return [(plain(name), parameter) for name, parameter in model.named_parameters()]


def named_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    plain = _plain_names(model)
    return [(plain(name), buffer) for name, buffer in model.named_buffers()]


def under_all_names(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers; a tied one has all its names. (From PyTorch 2.0 on, named_parameters
    and named_buffers can do so, too.)"""
    plain = _plain_names(model)
    return [
        (plain(f"{prefix}.{name}" if prefix else name), tensor)
        for prefix, part in model.named_modules(remove_duplicate=False)
        for members in (part._parameters, part._buffers)
        for name, tensor in members.items()
        if tensor is not None
    ]
