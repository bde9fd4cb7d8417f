# SPDX-License-Identifier: Apache-2.0
"""What communication hooks keep from step to step, by parameter.

DistributedDataParallel makes its buckets anew after the first step, in the order in which the
gradients came. What belongs to a bucket is therefore taken apart into what belongs to each
parameter when a bucket of other parameters appears."""

from __future__ import annotations

import warnings
from typing import Any, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from ._conductor import Conductor
from ._torch_names import named_parameters
from ._torch_tensors import real, real_shape

Vector = npt.NDArray[np.float32]
Keys = tuple[str, ...]


class Bucket:
    """Parameters whose gradients are reduced together, and the residual of their codes."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], residual: Vector):
        self.shapes = {key: tuple(shape) for key, shape in shapes.items()}
        self.residual = residual

    def by_key(self, vector: Vector) -> dict[str, Vector]:
        """The parts of a vector of this bucket that belong to each parameter."""
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes.values()]
        return dict(zip(self.shapes, np.split(vector, np.cumsum(sizes)[:-1])))


class State:
    """The base of hooks' states. A parameter's key is its name, if named() was told; else its place
    in the buckets of the first step, which is the same in each program with the same model."""

    def __init__(self, group: Any):
        self.conductor = Conductor(group)
        self.has_feedback = True
        self.step = 0  # Steps that are done: gradients of all buckets reduced.
        self._keys: dict[int, str] = {}
        self._parameters: list[Any] = []  # Alive, so that no other one gets an id from above.
        self._buckets: dict[Keys, Bucket] = {}
        self._loose: dict[str, Vector] = {}  # Residuals of parameters in no bucket.

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent since it began."""
        return self.conductor.bytes_sent

    def named(self, module: torch.nn.Module) -> None:
        """Takes the parameters' names from the module that DistributedDataParallel wraps."""
        if self._keys:
            raise RuntimeError("name the parameters before the first step")
        for name, parameter in named_parameters(module):
            self._keys[id(parameter)] = name
            self._parameters.append(parameter)

    def reduce(self, bucket: Any) -> Any:
        """What DistributedDataParallel calls. Returns a future of the bucket's mean gradient."""
        keys = tuple(self._key(parameter) for parameter in bucket.parameters())
        shapes: dict[str, Sequence[int]] = {
            key: real_shape(p) for key, p in zip(keys, bucket.parameters())
        }
        buffer, index, is_last, step = bucket.buffer(), bucket.index(), bucket.is_last(), self.step
        ready = _ready(buffer)
        if buffer.is_sparse:
            warnings.warn(
                f"the gradient of {', '.join(keys)} is sparse: it is averaged as it is, as without "
                "a hook, and neither coded nor made dense"
            )

        def work() -> torch.Tensor:
            if ready is not None:
                ready.synchronize()
            with torch.no_grad():
                if buffer.is_sparse:
                    return self.conductor.sum_sparse(buffer) / self.conductor.ranks
                self.average(self._bucket(shapes), real(buffer).view(-1), index, step)
            if buffer.is_cuda:
                torch.cuda.current_stream(buffer.device).synchronize()
            return buffer

        if is_last:
            self.step += 1
        return self.conductor.submit(work, buffer.device)

    def average(self, bucket: Any, buffer: torch.Tensor, index: int, step: int) -> None:
        """Replaces the buffer, of a complex one the view as pairs, by its mean over the ranks; called
        by the conductor."""
        raise NotImplementedError

    def make_bucket(self, shapes: dict[str, Sequence[int]], residual: Vector) -> Any:
        return Bucket(shapes, residual)

    def whole_residual(self, bucket: Any) -> Vector:
        """The residual of a bucket that is taken apart."""
        residual: Vector = bucket.residual
        return residual

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs of this rank; another rank has another one. To be called between
        steps."""
        if not self.has_feedback:
            return {"step": self.step, "residuals": {}}
        residuals = {key: torch.from_numpy(v.copy()) for key, v in self._loose.items()}
        for bucket in self._buckets.values():
            for key, part in bucket.by_key(self.whole_residual(bucket)).items():
                residuals[key] = torch.from_numpy(part.copy())
        return {"step": self.step, "residuals": residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what state_dict() gave, of the same model and as many ranks."""
        self.step = int(state["step"])
        self._buckets.clear()
        self._loose = {
            key: residual.detach().cpu().to(torch.float32).numpy().reshape(-1).copy()
            for key, residual in state["residuals"].items()
        }

    def _key(self, parameter: Any) -> str:
        key = self._keys.get(id(parameter))
        if key is None:
            key = self._keys[id(parameter)] = str(len(self._parameters))
            self._parameters.append(parameter)
        return key

    def _bucket(self, shapes: dict[str, Sequence[int]]) -> Any:
        keys = tuple(shapes)
        found = self._buckets.get(keys)
        if found is None:
            for old in [old for old in self._buckets if not set(old).isdisjoint(keys)]:
                bucket = self._buckets.pop(old)
                whole = self.whole_residual(bucket)
                self._loose.update((k, v.copy()) for k, v in bucket.by_key(whole).items())
            parts = [self._take(key, shape) for key, shape in shapes.items()]
            found = self._buckets[keys] = self.make_bucket(shapes, np.concatenate(parts))
        return found

    def _take(self, key: str, shape: Sequence[int]) -> Vector:
        size = int(np.prod(shape, dtype=np.int64))
        residual = self._loose.pop(key, None)
        if residual is None:
            return np.zeros(size, np.float32)
        if residual.size != size:
            raise ValueError(
                f"the loaded state has {residual.size} values for parameter {key}, which has"
                f" {size}: it is another model's"
            )
        return residual


def _ready(buffer: torch.Tensor) -> Any:
    """An event after which the buffer has the gradients; None on a CPU, where it has them."""
    if not buffer.is_cuda:
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(buffer.device))
    return event
