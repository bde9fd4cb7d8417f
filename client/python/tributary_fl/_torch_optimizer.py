# SPDX-License-Identifier: Apache-2.0
"""An optimizer's state (moments) in a safetensors file, which any version of PyTorch reads, and which
can't run code as a pickle can.

Tensors stand under their numbers; a tensor of bytes, `structure`, is JSON that says where they
belong. Of a tensor that is spread over ranks, each rank's file has the rank's part."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import Any

import numpy as np
import torch

from . import _tensors
from ._ranks import Ranks
from ._tensors import Tensor
from ._torch_gradients import dense
from ._torch_sharded import part_as
from ._torch_tensors import TYPES, is_part, mapped, real, store_all
from ._trainer import Task

STRUCTURE = "structure"
FORMATS = {kind: name for name, kind in TYPES.items()}
ROUNDS_KEPT = 2  # The round before stays: a round may be trained again after a crash.


class KeptOptimizer:
    """An optimizer's state from round to round, in a folder. Rank 0 keeps it for all, but where the
    state is sharded, each rank keeps its part, in a file of its own."""

    def __init__(self, folder: str, task: Task, ranks: Ranks | None, is_sharded: bool):
        self._folder, self._task = pathlib.Path(folder), task
        self._parts = ranks if is_sharded else None
        self._writes = ranks is None or ranks.is_first or is_sharded
        self._prefix = "optimizer-"
        if ranks is not None and is_sharded:
            self._prefix += f"{ranks.rank}of{ranks.count}-"

    def load(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives the optimizer the state after the last round before this one, if it was kept. With
        parts, the last round that all ranks have a file of: they may have been killed between two
        writes."""
        kept = {number: file for number, file in self._files() if number < self._task.round}
        common = set(kept)
        for numbers in self._parts.all(sorted(kept)) if self._parts else ():
            common &= set(numbers)
        if common:
            load_optimizer(optimizer, kept[max(common)])

    def save(self, optimizer: torch.optim.Optimizer) -> None:
        if is_in_parts(optimizer):
            parts: Any = optimizer
            parts.consolidate_state_dict(to=0)  # On all ranks.
        if not self._writes:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._prefix}{self._task.run}-{self._task.round:06}.safetensors"
        save_optimizer(optimizer, self._folder / name)
        last = [file for _, file in self._files()][-ROUNDS_KEPT:]
        for old in self._folder.glob(f"{self._prefix}*.safetensors"):
            if old not in last:
                old.unlink()

    def _files(self) -> list[tuple[int, pathlib.Path]]:
        """The rounds of this run whose states were kept, in their order, with the files."""
        found = self._folder.glob(f"{self._prefix}{self._task.run}-*.safetensors")
        return sorted((int(file.stem.rpartition("-")[2]), file) for file in found)


def is_in_parts(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is PyTorch's ZeroRedundancyOptimizer: each rank steps a part of the parameters, has
    the state of that part only, and gets the others' values."""
    # A program that makes one has imported this.
    module = sys.modules.get("torch.distributed.optim")
    return isinstance(optimizer, getattr(module, "ZeroRedundancyOptimizer", ()))


def save_optimizer(optimizer: torch.optim.Optimizer, path: pathlib.Path) -> None:
    """Writes the state, without settings such as the learning rate. The file is whole or not there,
    also after a loss of power."""
    tensors: list[torch.Tensor] = []
    packed = _pack(optimizer.state_dict()["state"], tensors)
    structure = np.frombuffer(json.dumps(packed).encode(), np.uint8)
    named = [(str(number), tensor) for number, tensor in enumerate(tensors)]
    specs = [Tensor(name, tuple(t.shape), FORMATS[t.dtype]) for name, t in named]
    temporary = path.with_suffix(".tmp")
    file = _tensors.create(temporary, [*specs, Tensor(STRUCTURE, structure.shape, "U8")])
    store_all(named, file)
    file[STRUCTURE][...] = structure
    file.mapped.flush()
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def load_optimizer(optimizer: torch.optim.Optimizer, path: pathlib.Path) -> None:
    """Gives the optimizer the state that a file has. Its settings stay."""
    file = _tensors.read(path)
    packed = json.loads(file[STRUCTURE].tobytes())
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def tensor(number: int) -> torch.Tensor:
        return mapped(file, str(number)).clone()

    state = {}
    for key, part in packed["dict"]:  # A parameter's state stands under the parameter's number.
        state[key] = _unpack(part, tensor, parameters[key] if isinstance(key, int) else None)
    # A ZeroRedundancyOptimizer's own has the state of all ranks, which is not together here.
    settings = torch.optim.Optimizer.state_dict(optimizer)["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": settings})


def _pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value for JSON. Its tensors are put at the end of `tensors`."""
    if isinstance(value, torch.Tensor):
        value = dense(value)  # An optimizer of sparse gradients adds them to a dense one, too.
        tensors.append(real(value))
        kind = "complex" if value.is_complex() else "tensor"
        return {"part" if is_part(value) else kind: len(tensors) - 1}
    if isinstance(value, dict):  # The keys may be numbers.
        return {"dict": [[key, _pack(part, tensors)] for key, part in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_pack(part, tensors) for part in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"keep_optimizer: can't keep a {type(value).__name__} of the optimizer's state")


def _unpack(packed: Any, tensor: Any, parameter: Any) -> Any:
    """The value that _pack was given; tensor(number) gives its tensors. Those that are spread over
    ranks are so as the parameter is that they belong to."""
    if not isinstance(packed, dict):
        return packed
    ((kind, value),) = packed.items()
    if kind == "tensor":
        return tensor(value)
    if kind == "complex":
        return torch.view_as_complex(tensor(value))
    if kind == "part":
        return part_as(parameter, tensor(value))
    if kind == "dict":
        return {key: _unpack(part, tensor, parameter) for key, part in value}
    parts = [_unpack(part, tensor, parameter) for part in value]
    return tuple(parts) if kind == "tuple" else parts


def _sync(path: pathlib.Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
