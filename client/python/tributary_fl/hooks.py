# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for torch's DistributedDataParallel: gradients travel as codecs make them.

    from tributary_fl import hooks

    model = DistributedDataParallel(module, bucket_cap_mb=25)
    hook = hooks.codec("ecuq:2+ef")
    hook.register(model)

Each hook has a thread and a process group of its own, on which it does one bucket after the other:
several buckets in flight neither hang nor mix over Gloo. It sends from host memory: tensors of a
GPU are copied there and back, as libfl-codec codes in host memory."""

# No `from __future__ import annotations`: DistributedDataParallel compares the hook's annotations.
from typing import Any, Optional

import torch
import torch.distributed as dist

from ._codec_hook import CodecState
from ._hook_state import State
from ._powersgd_hook import PowerSgdState

__all__ = ["Hook", "codec", "powersgd"]


class Hook:
    """What DistributedDataParallel.register_comm_hook(hook.state, hook) takes.

    state: has `bytes_sent`, the bytes that this rank has sent; and state_dict() and
        load_state_dict() for checkpoints: what error feedback keeps, which is another on each
        rank."""

    def __init__(self, name: str, state: State):
        self.__name__ = self.__qualname__ = name
        self.state = state

    def __call__(
        self, state: Optional[State], bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        return (state or self.state).reduce(bucket)

    def register(self, model: Any) -> None:
        """Registers the hook with a DistributedDataParallel. The parameters then have their names
        in the state, and for the patterns of a codec ('*.bias=none;*=ecuq:2+ef')."""
        self.state.named(model.module)
        model.register_comm_hook(self.state, self)


def codec(
    spec: str, *, group: Any = None, exchange: str = "auto", seed: int = 0, threads: int = 1
) -> Hook:
    """Averages gradients as a codec sends them. All ranks get the same bits, the same in each run.

    spec: a codec, as `fl-server codecs` explains it, but no "delta+" and no momentum. With "+ef"
        each rank keeps what its codes have lost, 4 bytes a parameter, and adds it to the next
        step's gradients.
    group: the ranks, a process group over Gloo that nothing else uses. None: a new one of all
        ranks; all of them must make their hooks in the same order.
    exchange: "gather": each rank sends its code C to all others, (n - 1) C bytes for n ranks.
        "parts": each rank gets one part of all codes, averages it, codes the mean and sends that to
        all others, 2 (n - 1) / n C bytes, but the mean is coded twice. "auto" takes what sends
        fewer bytes: "gather" for two ranks and for small buckets, else "parts".
    seed: of the random choices of codecs.
    threads: of the coder; 0 means one per core."""
    return Hook(f"tributary_fl.codec({spec})", CodecState(spec, group, exchange, seed, threads))


def powersgd(
    rank: int = 4,
    *,
    group: Any = None,
    exact_steps: int = 1000,
    feedback: bool = True,
    warm_start: bool = True,
    min_compression: float = 2.0,
    seed: int = 0,
) -> Hook:
    """Averages each gradient matrix as the product of two thin ones (PowerSGD, Vogels 2019).

    rank: their columns.
    group, seed: as codec() has them.
    exact_steps: so many steps are averaged exactly first.
    feedback: add what was lost to the next step's gradients.
    warm_start: begin each step with the last step's factors.
    min_compression: matrices that do not shrink by this factor are sent whole, as vectors are."""
    state = PowerSgdState(rank, group, exact_steps, feedback, warm_start, min_compression, seed)
    return Hook(f"tributary_fl.powersgd({rank})", state)
