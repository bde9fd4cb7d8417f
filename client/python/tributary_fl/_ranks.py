# SPDX-License-Identifier: Apache-2.0
"""A training program of several ranks, as torchrun starts it: rank 0 speaks to fl-client, the
others follow it."""

from __future__ import annotations

import datetime
from typing import Any, Mapping, Sequence

import torch
import torch.distributed as dist

from ._torch_tensors import real
from ._trainer import Cancelled, Task

# Between two requests hours may pass; fl-client notices a request without progress.
PATIENCE = datetime.timedelta(days=365)
FILES = ("weights", "correction", "out")  # Members of requests that only rank 0 can read.
STOP, GO, CANCEL = range(3)


class Ranks:
    """The ranks of the default process group, and a group over Gloo of their own."""

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.count: int = dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def say(self, request: Mapping[str, Any] | None) -> None:
        """Rank 0 gives the others a request; None: there are no more."""
        self.share(request)

    def hear(self) -> dict[str, Any] | None:
        """What rank 0 says."""
        request: dict[str, Any] | None = self.share(None)
        return request

    def share(self, value: Any) -> Any:
        """Rank 0's value, which can be pickled."""
        said = [value]
        dist.broadcast_object_list(said, 0, group=self._group)
        return said[0]

    def all(self, value: Any) -> list[Any]:
        """The values of all ranks, which can be pickled, in the order of the ranks."""
        said = [None] * self.count
        dist.all_gather_object(said, value, group=self._group)
        return list(said)

    def agree(self, value: int) -> int:
        """Rank 0's value."""
        said = torch.tensor([value])
        dist.broadcast(said, 0, group=self._group)
        return int(said)

    def most(self, value: int) -> int:
        said = torch.tensor([value])
        dist.all_reduce(said, dist.ReduceOp.MAX, group=self._group)
        return int(said)

    def sums(self, values: Sequence[float]) -> list[float]:
        said = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(said, group=self._group)
        sums: list[float] = said.tolist()
        return sums

    def give(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sets these tensors to rank 0's, which are of the same shapes and types."""
        for tensor in tensors:
            host = tensor.detach().cpu().contiguous()
            if host.numel():
                # Gloo does not know all number formats.
                dist.broadcast(host.reshape(-1).view(torch.uint8), 0, group=self._group)
            if not self.is_first:
                with torch.no_grad():
                    tensor.copy_(host)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """One rank gives one other rank a tensor."""
        host = tensor.detach().cpu().contiguous()
        if host.numel():
            dist.send(host.reshape(-1).view(torch.uint8), to, group=self._group)

    def receive(self, shape: Sequence[int], kind: torch.dtype, source: int) -> torch.Tensor:
        """What `source` sends, in host memory."""
        host = torch.empty(shape, dtype=kind)
        if host.numel():
            dist.recv(host.reshape(-1).view(torch.uint8), source, group=self._group)
        return host

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces these tensors by their sums over the ranks."""
        for tensor in tensors:
            numbers = real(tensor)
            host = numbers.to("cpu", torch.float32)
            dist.all_reduce(host, group=self._group)
            with torch.no_grad():
                numbers.copy_(host)


def ranks_here(alone: bool = False) -> Ranks | None:
    """None in a program with one rank, unless one that is `alone` is a group, too."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return Ranks() if alone or dist.get_world_size() > 1 else None


class SharedTask(Task):
    """A request that all ranks work on in step: rank 0 decides for all whether to take a step, or
    to stop because the request is not needed any more. No other call raises Cancelled, as the other
    ranks would wait for this one."""

    def __init__(self, ranks: Ranks, request: Mapping[str, Any], *of_channel: Any):
        super().__init__(request, *of_channel)
        self._ranks = ranks

    @staticmethod
    def tell(ranks: Ranks, task: Task) -> SharedTask:
        """On rank 0: gives the request to the others."""
        ranks.say({k: k in FILES or v for k, v in task.request.items()})
        shared = SharedTask(ranks, task.request, task._is_cancelled, task._send)
        shared.begin = task.begin
        return shared

    def may_begin(self, step: int, epoch_steps: int) -> bool:
        decision = STOP
        if self._ranks.is_first:
            decision = GO if super().may_begin(step, epoch_steps) else STOP
            decision = CANCEL if self.cancelled else decision
        decision = self._ranks.agree(decision)
        if decision == CANCEL:
            raise Cancelled
        return decision == GO

    def check(self) -> None:
        pass

    def progress(self, step: int, steps: int | None = None, loss: Any = None) -> None:
        """Without the loss, which is another one on each rank."""
        if self._ranks.is_first:
            super().progress(step, steps)
