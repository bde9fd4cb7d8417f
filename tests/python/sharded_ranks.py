# SPDX-License-Identifier: Apache-2.0
"""One rank of the programs of sharded_test.py: a tributary_fl.torch.Trainer of a small model, which
is sharded (fsdp), whole on each rank (ddp), or the only one (alone).

    sharded_ranks.py fsdp|ddp|alone FOLDER [OPTION...]"""

import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

import tributary_fl as fl
from needs_torch import DEVICE, join_group
from tributary_fl import metrics
from tributary_fl._ranks import Ranks
from tributary_fl.torch import Trainer


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 7), nn.Linear(7, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Has parameters whose rows two ranks can't share evenly (7, 3 and 1), a frozen layer, and two
    layers with the same weight."""

    def __init__(self, has_norm=False):
        super().__init__()
        self.before = nn.Linear(8, 8).requires_grad_(False)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.mix, self.mix_again = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.mix_again.weight = self.mix.weight
        self.norm = nn.BatchNorm1d(8) if has_norm else nn.Identity()
        self.scale = nn.Parameter(torch.ones(1))
        self.last = nn.Linear(8, 3)
        self.overflows = False

    def forward(self, x):
        x = self.before(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(self.mix_again(torch.tanh(self.mix(x))))
        scale = self.scale * 1
        if self.overflows:  # In the gradient of this parameter only, which rank 0 has alone.
            scale.register_hook(lambda gradient: gradient * torch.inf)
        return self.last(x) * scale


def make_net(has_norm=False, seed=1):
    if seed is not None:
        torch.manual_seed(seed)
    return Net(has_norm)


def data(examples=70):
    x = torch.randn(examples, 8, generator=torch.Generator().manual_seed(5))
    return x, x[:, :3].argmax(1)


class Area:
    """The area under the ROC curve of class 0, which no mean over batches or ranks gives."""

    better, combine = "higher", "none"

    def __init__(self):
        self.own = metrics.auroc()
        self.reset, self.result = self.own.reset, self.own.result

    def update(self, outputs, targets):
        self.own.update(outputs[:, 0], targets == 0)


def measured():
    return {"accuracy": metrics.accuracy, "area": Area(), "f1": metrics.f1()}


def shard(net, mixed=False):
    """Square weights are cut between columns, all others between rows."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard

    where = {
        "shard_placement_fn": lambda p: Shard(1) if p.shape == (8, 8) else None,
        "mp_policy": MixedPrecisionPolicy(*((torch.bfloat16, torch.float32) if mixed else ())),
    }
    for block in net.blocks:
        fully_shard(block, **where)
    fully_shard(net, **where)
    return net


def clipped(parameters, norm=0.05):
    """SGD that clips the norm of the whole gradient."""
    parameters = list(parameters)
    optimizer = torch.optim.SGD(parameters, 0.5)

    def clip(*_):
        nn.utils.clip_grad_norm_(parameters, norm)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def adam(parameters):
    return torch.optim.Adam(parameters, 0.01)


def arguments_of(options):
    """Arguments of the Trainer."""
    return {
        "optimizer": clipped if "clip" in options else adam if "adam" in options else None,
        "keep_optimizer": "keep" in options,
        "autocast": "fp16" if "fp16" in options else None,
        "metrics": measured(),
        "device": DEVICE,
    }


def part_of(rank, ranks, options):
    x, y = data()
    if "uneven" in options:
        here = slice(0, 48) if rank == 0 else slice(48, 70)
    else:
        here = slice(rank, None, ranks)
    return x[here], y[here]


def watch_sizes(folder, rank):
    """Writes how many numbers the largest tensor has that this rank has received."""
    receive = Ranks.receive
    most = 0

    def watched(self, shape, kind, source):
        nonlocal most
        most = max(most, torch.Size(shape).numel())
        (folder / f"received-{rank}").write_text(str(most))
        return receive(self, shape, kind, source)

    Ranks.receive = watched


def add_instead_of_averaging():
    """Acts as Gloo did before PyTorch 2.9 (its issue 162338)."""
    reduce_scatter = dist.reduce_scatter_tensor

    def added(output, input, op=dist.ReduceOp.SUM, **others):
        return reduce_scatter(output, input, op=dist.ReduceOp.SUM, **others)

    dist.reduce_scatter_tensor = added


def main():
    kind, folder, *options = sys.argv[1:]
    folder = pathlib.Path(folder)
    torch.set_num_threads(1)
    rank, ranks = 0, 1
    if kind != "alone":
        join_group()
        rank, ranks = dist.get_rank(), dist.get_world_size()
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    watch_sizes(folder, rank)
    if "adds" in options:
        add_instead_of_averaging()

    class Mine(Trainer):
        def train_step(self, batch):
            if rank == 1 and (folder / "fail").exists():
                raise OSError("the disk of rank 1 is gone")
            self.model.overflows = (folder / "overflow").exists()
            return super().train_step(batch)

    def model(seed=1):
        net = make_net("norm" in options, seed).to(DEVICE)
        if "wrapped" in options:
            net.blocks = nn.ModuleList(map(checkpoint_wrapper, net.blocks))
        if kind == "ddp":
            net = DistributedDataParallel(net)
        elif kind == "fsdp":
            net = shard(net, "mixed" in options)
        return torch.compile(net, backend="eager") if "wrapped" in options else net

    net = (lambda: model(None)) if "factory" in options else model()
    held_out = None if rank else data(20)
    part = part_of(rank, ranks, options)
    trainer = Mine(net, part, eval_data=held_out, eval_batch_size=16, **arguments_of(options))
    fl.run(trainer, state=folder / "state")
    if kind != "alone":
        dist.destroy_process_group()  # Else PyTorch aborts now and then at the program's end.


if __name__ == "__main__":
    main()
