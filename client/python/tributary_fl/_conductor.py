# SPDX-License-Identifier: Apache-2.0
"""One thread for each communication hook, which alone starts the collectives of the hook's group.

DistributedDataParallel calls a hook for bucket after bucket, in the same order on all ranks, while
the backward pass goes on. The thread does one bucket after the other in that order. A collective
that a future's callback starts would race with those of the next bucket: over Gloo the sums of
several buckets are then silently wrong, or all ranks wait for each other."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

END_WAIT_S = 2.0
Work = Callable[[], torch.Tensor]


class Conductor:
    """Runs jobs one after another, each with collectives of `group`.

    group: a process group that nothing else uses. None: a new one of all ranks, over Gloo; all
        ranks must then make their conductors in the same order."""

    def __init__(self, group: Any = None):
        if not dist.is_initialized():
            raise RuntimeError("call torch.distributed.init_process_group() before you make a hook")
        self.group = dist.new_group(backend="gloo") if group is None else group
        if dist.get_backend(self.group) != "gloo":
            raise ValueError("a hook sends from host memory: its group must be over gloo")
        self.rank: int = dist.get_rank(self.group)
        self.ranks: int = dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError("this process is not in the group of the hook")
        self.bytes_sent = 0  # By this rank, since it was made.
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._jobs,), daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._jobs, thread)

    def submit(self, work: Work, device: torch.device) -> Any:
        """Appends a job. Returns a torch.futures.Future of what it returns, or of its error."""
        devices = [device] if device.type == "cuda" else None
        done: Any = torch.futures.Future(devices=devices)
        self._jobs.put((work, done))
        # An exception as the value would reach DistributedDataParallel as a wrong type.
        return done.then(_value)

    def swap(self, payloads: Sequence[bytes], bytes_max: Sequence[int]) -> list[bytes]:
        """Sends payloads[r] to rank r, and returns what each rank has sent to this one. Exactly
        these bytes travel, and 8 for each size. A RuntimeError refuses more than bytes_max[r] bytes
        of rank r before there is memory for them."""
        sizes = torch.tensor([len(payload) for payload in payloads], dtype=torch.int64)
        incoming = torch.empty_like(sizes)
        dist.all_to_all_single(incoming, sizes, group=self.group)
        sent, received = sizes.tolist(), incoming.tolist()
        for rank, (size, most) in enumerate(zip(received, bytes_max)):
            if not 0 <= size <= most:
                raise RuntimeError(
                    f"rank {rank} announces a payload of {size} bytes; at most {most} are right: "
                    "do all ranks have the same model?"
                )
        outgoing = torch.empty(sum(sent), dtype=torch.uint8)
        if sum(sent) > 0:
            outgoing = torch.frombuffer(bytearray(b"".join(payloads)), dtype=torch.uint8)
        into = torch.empty(sum(received), dtype=torch.uint8)
        dist.all_to_all_single(into, outgoing, received, sent, group=self.group)
        self.bytes_sent += (self.ranks - 1) * 8 + sum(sent) - sent[self.rank]
        whole = memoryview(into.numpy())
        ends = [sum(received[: at + 1]) for at in range(self.ranks)]
        return [bytes(whole[end - size : end]) for end, size in zip(ends, received)]

    def sum(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by the sum over the ranks: the same bits on all of them."""
        host = tensor.cpu()  # The tensor itself, if it is there.
        dist.all_reduce(host, group=self.group)
        if tensor.is_cuda:
            tensor.copy_(host)
        all_bytes = tensor.numel() * tensor.element_size()
        self.bytes_sent += 2 * (self.ranks - 1) * all_bytes // self.ranks  # Gloo's ring.

    def sum_sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks of a sparse tensor: the same bits on all of them."""
        host = tensor.cpu().coalesce()
        parts = (host.indices(), host.values())
        all_bytes = sum(part.numel() * part.element_size() for part in parts)
        self.bytes_sent += (self.ranks - 1) * all_bytes  # Each rank gets those of all others.
        dist.all_reduce(host, group=self.group)
        return host.to(tensor.device)


def _end(jobs: queue.SimpleQueue[Any], thread: threading.Thread) -> None:
    """When the conductor is gone, or the program ends: with a thread in the midst of it, Python's
    end is an abort. A thread that waits for a dead rank is left where it is."""
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(END_WAIT_S)


def _work(jobs: queue.SimpleQueue[Any]) -> None:
    """Until the conductor is gone. After an error the group is of no use: later jobs fail, too."""
    failed: Exception | None = None
    while (job := jobs.get()) is not None:
        work, done = job
        try:
            if failed is not None:
                raise RuntimeError(f"an earlier bucket of this hook failed: {failed}")
            outcome = work()
        except Exception as error:
            failed = failed or error
            outcome = error
        done.set_result(outcome)
        del job, work, done, outcome


def _value(done: Any) -> Any:
    outcome = done.value()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
