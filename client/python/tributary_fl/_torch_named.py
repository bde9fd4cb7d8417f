# SPDX-License-Identifier: Apache-2.0
"""What a model takes of a batch, and its loss. A batch is a tuple with the targets last, or its parts
have names, as the models of Hugging Face take them: a dict of tensors, with the targets under
`labels`."""

from __future__ import annotations

import inspect
import re
from typing import Any, Callable, Mapping, Sequence, Union

import torch

from ._torch_names import unwrapped

TARGETS = ("labels", "label", "label_ids")
OWN_STEPS = (
    "override inputs_and_targets, or train_step (it returns the mean loss over the batch) and "
    "eval_step (it returns that loss, the outputs and the targets)"
)
Forward = Callable[..., Any]
Inputs = Union[Sequence[Any], Mapping[str, Any]]
Loss = Callable[[Any, Any], torch.Tensor]


def targets_name(batch: Mapping[str, Any]) -> str | None:
    """The name that a batch has its targets under."""
    return next((name for name in TARGETS if name in batch), None)


def split(batch: Any, module: torch.nn.Module) -> tuple[Inputs, Any]:
    """The inputs that the module takes, and the targets. Of a dict, other columns of a data set, such
    as an example's number or its text, are left out."""
    if not isinstance(batch, Mapping):
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise TypeError(
                f"a batch is a {type(batch).__name__}, not (inputs, targets) or a dict: {OWN_STEPS}"
            )
        return batch[:-1], batch[-1]
    name = targets_name(batch)
    if name is None:
        raise TypeError(
            f"a batch is a dict of {', '.join(map(str, batch))}, and none of these is 'labels': rename "
            f"the targets, or {OWN_STEPS}"
        )
    takes = _takes(module)
    inputs = {
        key: value
        for key, value in batch.items()
        if key != name and takes(key) and not _is_text(value)
    }
    if not inputs:
        raise TypeError(
            f"the model's forward() has no argument of a name in the batch ({', '.join(batch)}): rename "
            f"one of the two, or {OWN_STEPS}"
        )
    return inputs, batch[name]


def predicted(targets: Any, module: torch.nn.Module) -> Any:
    """Those of the targets that the module's own loss is a mean over. A model that predicts the next
    token leaves out the first one."""
    return targets[:, 1:] if _predicts_next(module) else targets


def loss_of(
    model: Forward,
    module: torch.nn.Module,
    inputs: Inputs,
    targets: Any,
    loss: Loss,
    is_chosen: bool,
) -> tuple[torch.Tensor, Any, Any]:
    """The loss, and the outputs and targets that metrics compare.

    model: what is called: the module, or what wraps it.
    loss: unless it is chosen by the user, a module that takes `labels` and returns a loss of its own
        has that. Then classes stand along dimension 1 of the outputs, as metrics take them."""
    if not isinstance(inputs, Mapping):
        outputs = model(*inputs)
        return loss(outputs, targets), outputs, targets
    asks = not is_chosen and _takes(module)("labels")
    said = model(**inputs, labels=targets) if asks else model(**inputs)
    found, outputs = _parts(said)
    if not asks or found is None:
        return loss(outputs, targets), outputs, targets
    if _predicts_next(module):
        outputs, targets = outputs[:, :-1], predicted(targets, module)
    if isinstance(outputs, torch.Tensor) and outputs.dim() == targets.dim() + 1 > 2:
        outputs = outputs.movedim(-1, 1)
    return found, outputs, targets


def _base(module: torch.nn.Module) -> Any:
    """The model inside of wrappers and of a PEFT model, or the module itself."""
    *_, inner = unwrapped(module)
    get: Any = getattr(inner, "get_base_model", None)
    return inner if get is None else get()


def _takes(module: torch.nn.Module) -> Callable[[str], bool]:
    """Whether the module's forward() has an argument of a name."""
    arguments = inspect.signature(_base(module).forward).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in arguments.values())
    return lambda name: takes_all or name in arguments


def _predicts_next(module: torch.nn.Module) -> bool:
    """By the names that Hugging Face gives to such classes."""
    name = type(_base(module)).__name__
    return re.search("(ForCausalLM|LMHeadModel)$", name) is not None and "XLNet" not in name


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], str)
    )


def _parts(said: Any) -> tuple[Any, Any]:
    """The loss and the outputs of what a model has returned; None for a loss that is not there."""
    if isinstance(said, torch.Tensor):
        return None, said
    if isinstance(said, tuple) and not hasattr(said, "_fields"):  # With return_dict=False.
        has_loss = len(said) > 1 and isinstance(said[0], torch.Tensor) and said[0].dim() == 0
        return (said[0], said[1]) if has_loss else (None, said[0] if said else said)

    def part(name: str) -> Any:
        return said.get(name) if isinstance(said, Mapping) else getattr(said, name, None)

    outputs = part("logits")
    return part("loss"), said if outputs is None else outputs
