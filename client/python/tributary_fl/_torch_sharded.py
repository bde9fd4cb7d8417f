# SPDX-License-Identifier: Apache-2.0
"""A model that torch.distributed.fsdp.fully_shard (FSDP2) has cut: each rank has a part of every
parameter.

Parts travel from and to rank 0 one after the other, through host memory. No rank holds more than its
parts and one part on its way, but for the digest of frozen parameters: there rank 0 has one of them
whole at a time. Files are mapped."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import Any, Iterator, Sequence, TypeVar

import torch
import torch.distributed as dist

from ._ranks import Ranks
from ._tensors import TensorFile
from ._torch_data import moved
from ._torch_names import named_parameters, unwrapped
from ._torch_spread import Device, Spread
from ._torch_tensors import (
    Named, freeze, frozen_digest, is_part, load_all, mapped, real, real_shape, store_all,
    values_for,
)  # fmt: skip
from ._trainer import Cancelled, Task

T = TypeVar("T")


def is_sharded(model: Any) -> bool:
    # A program that has sharded a model has imported this. PyTorch has the name since 2.6.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", ())
    return any(isinstance(part, kind) for part in unwrapped(model))


@dataclass(frozen=True)
class Cut:
    """How a tensor is cut: along which dimension, and whose parts follow each other."""

    dim: int
    ranks: list[int]
    sizes: list[int]

    def parts(self, whole: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """The ranks, each with its part of a whole tensor's memory."""
        return zip(self.ranks, whole.split(self.sizes, self.dim))


class Sharded(Spread):
    measures_together = True

    def __init__(self, model: Any, ranks: Ranks, frozen: Sequence[str]):
        self.module, self._ranks = model, ranks
        self.gradient_parts = ranks.count
        fsdp = sys.modules["torch.distributed.fsdp"]
        self._layers = [part for part in model.modules() if isinstance(part, fsdp.FSDPModule)]
        self._reshard()
        freeze(model, frozen)
        self._cuts = self._agree_on_cuts()
        if not self._cuts:
            raise TypeError("fully_shard has sharded no parameter of this model")
        self._mesh = next(p for p in model.parameters() if is_part(p)).device_mesh
        self._make_means()
        self._digest = frozen_digest(model, self._on_rank_0)

    def put_on(self, device: Device) -> torch.device:
        mesh = torch.device(self._mesh.device_type)
        place = mesh if device is None else torch.device(device)
        if place.type != mesh.type:
            raise ValueError(
                f"device: the model is sharded over ranks on '{mesh}', so it can't be on '{place}'"
            )
        return place

    def frozen_digest(self) -> str:
        return self._digest

    def load(self, tensors: Named, file: TensorFile | None) -> None:
        self._reshard()
        for name, tensor in tensors:
            if name in self._cuts:
                self._load_parts(name, tensor, file)
                continue
            if file is not None:
                load_all([(name, tensor)], file)
            self._ranks.give([tensor])

    def store(self, tensors: Named, file: TensorFile | None) -> None:
        for name, tensor in tensors:
            if name in self._cuts:
                self._collect(name, tensor, None if file is None else mapped(file, name))
            elif file is not None:
                store_all([(name, tensor)], file)

    def add_up(self, gradients: Sequence[torch.Tensor]) -> None:
        """The backward passes have done so."""

    @contextlib.contextmanager
    def without_exchange(self) -> Iterator[None]:
        self._layers[0].set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._layers[0].set_requires_gradient_sync(True)

    def most(self, own: int) -> int:
        return self._ranks.most(own)

    def of_rank_0(self, batches: Iterator[T], task: Task) -> Iterator[T]:
        while True:
            said = None
            if self._ranks.is_first:
                # From a GPU they would come to the one of the same number.
                said = task.cancelled, moved(next(batches, None), torch.device("cpu"))
            is_cancelled, batch = self._ranks.share(said)
            if is_cancelled:
                raise Cancelled
            if batch is None:
                return
            yield batch

    def _reshard(self) -> None:
        """Frees whole parameters that a forward pass without a backward pass has left: the next one
        would take them for the parameters' values. Also puts the parts back into their modules."""
        for layer in self._layers:
            layer.reshard()

    # How parameters are cut.

    def _agree_on_cuts(self) -> dict[str, Cut]:
        """How each sharded parameter is cut."""
        said = self._ranks.all({n: self._part(n, p) for n, p in named_parameters(self.module)})
        mine = said[self._ranks.rank]
        cuts = {}
        for rank, others in enumerate(said):
            if [(n, p[:2]) for n, p in others.items()] != [(n, p[:2]) for n, p in mine.items()]:
                raise ValueError(
                    f"rank {rank} has other parameters than rank {self._ranks.rank}, or has cut "
                    "them another way: all ranks must make the same model"
                )
        for name, (shape, dim, _, _) in mine.items():
            if dim is None:
                continue
            ranks = sorted(range(self._ranks.count), key=lambda rank: said[rank][name][2])
            cuts[name] = Cut(dim, ranks, [said[rank][name][3] for rank in ranks])
            assert sum(cuts[name].sizes) == shape[dim], name
        return cuts

    def _part(self, name: str, parameter: Any) -> tuple[list[int], int | None, int, int]:
        """The whole parameter's shape, along which dimension it is cut (None: not at all), which
        part this rank has, and the part's size."""
        from torch.distributed.tensor import Shard

        shape = list(parameter.shape)
        if parameter.is_meta:
            raise ValueError(
                f"parameter '{name}' is on the meta device: call to_empty(device=...) of the model "
                "and set the values before you make the Trainer"
            )
        if not is_part(parameter):
            if parameter.requires_grad:
                raise TypeError(
                    f"parameter '{name}' is trained and not sharded: its gradients would be others "
                    "on each rank. Let fully_shard shard it, or set requires_grad=False"
                )
            return shape, None, 0, 0
        mesh, (placement, *more) = parameter.device_mesh, parameter.placements
        if more or type(placement) is not Shard or mesh.size() != self._ranks.count:
            raise TypeError(
                f"parameter '{name}' lies as {parameter.placements} on {mesh}: the Trainer needs "
                "one mesh of one dimension over all ranks, with a part of each parameter on each "
                "rank (no replicas, HSDP or tensor parallelism)"
            )
        size = parameter.to_local().shape[placement.dim]
        return shape, placement.dim, mesh.get_local_rank(), size

    def _make_means(self) -> None:
        """Over Gloo, PyTorch before 2.9 adds the ranks' gradients up where it is to average them
        (its issue 162338). Where this is so, lets FSDP divide the sums itself."""
        place, count = self._mesh.device_type, self._ranks.count
        own, ones = torch.zeros(1, device=place), torch.ones(count, device=place)
        with contextlib.suppress(RuntimeError):  # Older ones have no such operation at all.
            group = self._mesh.get_group()
            dist.reduce_scatter_tensor(own, ones, op=dist.ReduceOp.AVG, group=group)
        if float(own) == 1:
            return
        for layer in self._layers:
            if not hasattr(layer, "set_force_sum_reduction_for_comms"):
                raise RuntimeError(
                    f"FSDP of PyTorch {torch.__version__} can't average gradients over this "
                    "backend: use a newer PyTorch, or NCCL"
                )
            layer.set_force_sum_reduction_for_comms(True)

    # Parts on their way.

    def _load_parts(self, name: str, tensor: torch.Tensor, file: TensorFile | None) -> None:
        own = real(tensor)
        if file is None:
            own.copy_(self._ranks.receive(own.shape, own.dtype, 0))
            return
        cut = self._cuts[name]
        shape = list(own.shape)
        shape[cut.dim] = sum(cut.sizes)
        for rank, part in cut.parts(values_for(name, shape, file, name)):
            if rank == self._ranks.rank:
                own.copy_(part)
            else:
                self._ranks.send(part.to(own.dtype), rank)

    def _collect(self, name: str, tensor: torch.Tensor, whole: torch.Tensor | None) -> None:
        """Sets `whole`, which only rank 0 has, to the parts of all ranks."""
        own = real(tensor)
        if whole is None:
            self._ranks.send(own, 0)
            return
        for rank, part in self._cuts[name].parts(whole):
            is_mine = rank == self._ranks.rank
            part.copy_(own if is_mine else self._ranks.receive(part.shape, own.dtype, rank))

    def _on_rank_0(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """On rank 0 the whole tensor, in host memory; on the others what they have of it."""
        if name not in self._cuts:
            return real(tensor).cpu()
        if not self._ranks.is_first:
            self._collect(name, tensor, None)
            return real(tensor).cpu()
        whole = torch.empty(real_shape(tensor), dtype=real(tensor).dtype)
        self._collect(name, tensor, whole)
        return whole


def part_as(like: Any, own: torch.Tensor) -> torch.Tensor:
    """A tensor that is cut as another one is, of which this rank has the part `own`."""
    from torch.distributed.tensor import DTensor

    if like.is_complex():
        own = torch.view_as_complex(own)
    part = like.to_local()
    if own.shape != part.shape:
        raise ValueError(
            f"keep_optimizer: a kept part has shape {list(own.shape)}, but this rank's part of its "
            f"parameter has {list(part.shape)}: delete the kept files if the program has changed; "
            "of an optimizer whose state has shapes of its own, no parts can be kept"
        )
    made: torch.Tensor = DTensor.from_local(
        own.to(part.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return made
