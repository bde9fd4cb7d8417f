# SPDX-License-Identifier: Apache-2.0
"""One rank of the groups of hooks_test.py: runs scenarios with communication hooks, and writes what
it has found.

    hooks_ranks.py RANK RANKS FOLDER"""

import hashlib
import io
import os
import pathlib
import sys
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from needs_torch import DEVICE, join_group
from tributary_fl import hooks

RANK, RANKS = int(sys.argv[1]), int(sys.argv[2])
TINY_MB = 0.02  # Makes several buckets of the model.


def make_model():
    torch.manual_seed(3)
    layers = [nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 64)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(64, 8)).to(DEVICE)


def batch_of(rank, step, examples=16):
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(examples, 64, generator=draw)
    return x.to(DEVICE), x[:, :3].argmax(1).to(DEVICE)


def loss_of(model, rank, step, examples=16):
    x, y = batch_of(rank, step, examples)
    return nn.functional.cross_entropy(model(x), y)


def gradients(model):
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).cpu().numpy().copy()


def mean_gradients(model, step, examples=16):
    """The mean of all ranks' gradients, without any group."""
    total = np.zeros(sum(p.numel() for p in model.parameters()), np.float64)
    for rank in range(RANKS):
        model.zero_grad()
        loss_of(model, rank, step, examples).backward()
        total += gradients(model)
    return total / RANKS


def parallel(hook):
    """A model of several buckets with this hook, and the parameters of each bucket it was given."""
    seen = []

    class Watched(hooks.Hook):
        def __call__(self, state, bucket):
            seen.append((state.step, [id(p) for p in bucket.parameters()]))
            return super().__call__(state, bucket)

    model = DistributedDataParallel(make_model(), bucket_cap_mb=TINY_MB)
    if hook is not None:
        watched = Watched("watched", hook.state)
        watched.register(model)
    return model, seen


class Bucket:
    """Stands for a bucket of DistributedDataParallel."""

    def __init__(self, *tensors):
        self._parameters = [nn.Parameter(tensor) for tensor in tensors]

    def filled(self, values, index=0):
        self._buffer, self._index = values, index
        return self

    def parameters(self):
        return self._parameters

    def buffer(self):
        return self._buffer

    def index(self):
        return self._index

    def is_last(self):
        return True


def reduced(hook, bucket, values):
    done = hook(hook.state, bucket.filled(values.clone().to(DEVICE)))
    return done.wait().cpu().numpy().copy()


def own_values(size, seed=0, rank=RANK):
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * seed + rank))


def exact():
    """A codec that loses nothing gives the mean, in buckets that are rebuilt."""
    model, seen = parallel(hooks.codec("lossless"))
    plain, errors = make_model(), []
    for step in range(4):
        model.zero_grad()
        loss_of(model, RANK, step).backward()
        expected = mean_gradients(plain, step)
        errors.append(np.abs(gradients(model.module) - expected).max() / np.abs(expected).max())
    buckets = [[keys for at, keys in seen if at == step] for step in range(4)]
    return {
        "errors": errors,
        "buckets": len(buckets[-1]),
        "is_rebuilt": buckets[0] != buckets[-1],
        "bits": gradients(model.module),
    }


def kept(make_hook, steps=5):
    """The reduced sum over some steps of the same weights, the true sum, and the part of the
    difference that the residuals have."""
    hook = make_hook()
    model, seen = parallel(hook)
    plain = make_model()
    size = sum(p.numel() for p in plain.parameters())
    total, expected = np.zeros(size), np.zeros(size)
    for step in range(steps):
        model.zero_grad()
        loss_of(model, RANK, step).backward()
        total += gradients(model.module)
        expected += mean_gradients(plain, step)
    residuals = hook.state.state_dict()["residuals"]
    return {
        "total": total,
        "expected": expected,
        "residual": np.concatenate([residuals[n].numpy() for n, _ in plain.named_parameters()]),
        "bits": gradients(model.module),
    }


def codec_keeps():
    return kept(lambda: hooks.codec("ecuq:1+ef", exchange="parts" if RANKS > 2 else "auto"))


def powersgd_keeps():
    return kept(lambda: hooks.powersgd(1, exact_steps=1))


def trained(hook, steps=50):
    model, _ = parallel(hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.8)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, RANK, step % 5)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).cpu().numpy()
    return np.mean(losses[-5:]), hashlib.sha256(weights.tobytes()).hexdigest()


def training():
    found = {}
    exchange = "parts" if RANKS > 2 else "gather"
    makers = {
        "plain": lambda: None,
        "codec": lambda: hooks.codec("ecuq:2+ef", exchange=exchange),
        "powersgd": lambda: hooks.powersgd(4, exact_steps=5),
    }
    if RANKS == 2:
        makers["again"] = makers["codec"]
    for name, make in makers.items():
        found[name + "_loss"], found[name + "_bits"] = trained(make())
    return found


def traffic():
    """Bytes of one step, as the hook counts them and as they are given to collectives."""
    size = 200_000
    found = {"size": size}
    swap = dist.all_to_all_single
    for exchange in "gather", "parts", "auto":
        hook, given = hooks.codec("ecuq:2+ef", exchange=exchange), []

        def spy(out, values, out_sizes=None, sizes=None, group=None):
            own = len(values) // RANKS if sizes is None else sizes[RANK]
            given.append((len(values) - own) * values.element_size())
            return swap(out, values, out_sizes, sizes, group=group)

        dist.all_to_all_single = spy
        try:
            reduced(hook, Bucket(torch.empty(400, 500)), own_values(size))
        finally:
            dist.all_to_all_single = swap
        found[exchange], found[exchange + "_given"] = hook.state.bytes_sent, sum(given)
    return found


def announced():
    """What a hook says to sizes that no payload can have."""
    found = {}
    swap = dist.all_to_all_single
    for exchange in "gather", "parts":
        for size in -1, 2**40:
            hook = hooks.codec("ecuq:2", exchange=exchange)

            def lie(out, values, out_sizes=None, sizes=None, group=None):
                done = swap(out, values, out_sizes, sizes, group=group)
                if sizes is None:
                    out[RANKS - 1] = size
                return done

            dist.all_to_all_single = lie
            try:
                reduced(hook, Bucket(torch.empty(8192 * RANKS)), own_values(8192 * RANKS))
            except RuntimeError as error:
                found[f"{exchange} {size}"] = str(error)
            finally:
                dist.all_to_all_single = swap
    return found


def unbiased():
    """How far one result is from the mean, and the average of many."""
    size, times = 8192 * RANKS, 64
    mean = np.mean([own_values(size, rank=rank).numpy() for rank in range(RANKS)], axis=0)
    hook, bucket = hooks.codec("ecuq:1", seed=7), Bucket(torch.empty(size))
    all_of = [reduced(hook, bucket, own_values(size)) for _ in range(times)]
    norm = np.linalg.norm(mean)
    return {
        "one": np.linalg.norm(all_of[0] - mean) / norm,
        "many": np.linalg.norm(np.mean(all_of, axis=0) - mean) / norm,
        "times": times,
    }


def overflow():
    """A rank with an infinite gradient: all get NaN, and the next step is as if it had not been."""
    found = {}
    for exchange in "gather", "parts":
        bucket, results = Bucket(torch.empty(128, 256)), []
        for has_overflow in False, True:
            hook = hooks.codec("ecuq:2+ef", exchange=exchange)
            reduced(hook, bucket, own_values(128 * 256, 1))
            if has_overflow:
                values = own_values(128 * 256, 2)
                if RANK == 1:
                    values[77] = float("inf")
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    found[exchange + "_nan"] = np.isnan(reduced(hook, bucket, values)).all()
                found[exchange + "_warned"] = len(warned)
                hook.state.step -= 1
            results.append(reduced(hook, bucket, own_values(128 * 256, 3)))
        found[exchange + "_same"] = np.array_equal(*results)
    return found


def resumed():
    """A hook that goes on from a checkpoint, beside one without a break."""
    found = {}
    for name, make in {
        "codec": lambda: hooks.codec("ecuq:1+ef", exchange="gather"),
        "powersgd": lambda: hooks.powersgd(2, exact_steps=1),
    }.items():
        bucket, results = Bucket(torch.empty(64, 96), torch.empty(96)), []
        for has_break in False, True:
            hook = make()
            for step in range(6):
                if has_break and step == 3:
                    file = io.BytesIO()
                    torch.save(hook.state.state_dict(), file)
                    file.seek(0)
                    hook = make()
                    hook.state.load_state_dict(torch.load(file))
                last = reduced(hook, bucket, own_values(64 * 96 + 96, step))
            results.append(last)
        found[name] = np.array_equal(*results)
        try:
            of_another = {**hook.state.state_dict(), "residuals": {"0": torch.ones(5)}}
            hook.state.load_state_dict(of_another)
            reduced(hook, bucket, own_values(64 * 96 + 96))
        except (ValueError, RuntimeError) as error:
            found[name + "_refusal"] = str(error)
    return found


def low_rank():
    """Gradients of so few examples that the factors hold all of them."""
    model, seen = parallel(hooks.powersgd(RANKS, exact_steps=1, feedback=False))
    plain, errors = make_model(), []
    for step in range(4):
        model.zero_grad()
        loss_of(model, RANK, step, examples=1).backward()
        expected = mean_gradients(plain, step, examples=1)
        errors.append(np.abs(gradients(model.module) - expected).max() / np.abs(expected).max())
    return {"errors": errors, "buckets": len([1 for step, _ in seen if step == 3])}


class Sparse(nn.Module):
    """Embeddings with sparse gradients beside a dense layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(50, 8, sparse=True)
        self.bags = nn.EmbeddingBag(50, 8, sparse=True, mode="sum")
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.words(x[:, 0]) + self.bags(x[:, 1:]))


def all_gradients(model):
    parts = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in model.parameters()]
    return torch.cat([p.reshape(-1) for p in parts]).cpu().numpy().copy()


def sparse():
    """Sparse gradients are averaged as they are, whatever the hook does with others."""
    found = {"errors": [], "notes": 0, "has_residuals": False}
    for hook in hooks.codec("topk:0.01+ef"), hooks.powersgd(2, exact_steps=1):
        plain, model = Sparse().to(DEVICE), DistributedDataParallel(Sparse().to(DEVICE))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            hook.register(model)
            for step in range(4):
                means = []
                for rank in range(RANKS):
                    draw = torch.Generator().manual_seed(1000 * step + rank)
                    x = torch.randint(50, (16, 5), generator=draw).to(DEVICE)
                    for one in (plain, model) if rank == RANK else (plain,):
                        one.zero_grad(set_to_none=True)
                        one(x).square().mean().backward()
                    means.append(all_gradients(plain))
                rows = slice(0, 2 * 50 * 8)  # Those of the embeddings.
                found["bits"] = all_gradients(model)
                error = found["bits"][rows] - np.mean(means, axis=0)[rows]
                found["errors"].append(np.abs(error).max())
        found["notes"] += len({str(one.message) for one in said if "is sparse" in str(one.message)})
        kept = hook.state.state_dict()["residuals"]
        found["has_residuals"] |= any(not name.startswith("last.") for name in kept)
    return found


def complex_numbers():
    """Both parts of complex gradients travel, and residuals hold what their codes have lost."""
    shapes = (32, 32), (32,)
    bucket = Bucket(*(torch.zeros(shape, dtype=torch.complex64) for shape in shapes))

    def steps(hook):
        for step in range(4):
            pairs = [own_values(2 * (32 * 32 + 32), step, r).view(-1, 2) for r in range(RANKS)]
            mean = reduced(hook, bucket, torch.view_as_complex(pairs[RANK].contiguous()))
            yield mean.view(np.float32), np.mean([p.numpy().reshape(-1) for p in pairs], axis=0)

    errors = [np.abs(found - mean).max() for found, mean in steps(hooks.codec("lossless"))]
    hook = hooks.codec("ecuq:2+ef")
    found, means = zip(*steps(hook))
    kept = hook.state.state_dict()["residuals"].values()
    return {
        "errors": errors,
        "bits": found[-1],
        "residual": np.concatenate([residual.numpy() for residual in kept]),
        "total": sum(found),
        "expected": sum(means),
    }


def death():
    """The last rank dies in its third step."""
    model, _ = parallel(hooks.codec("ecuq:2+ef"))
    for step in range(20):
        if step == 2 and RANK == RANKS - 1:
            os._exit(9)
        try:
            loss_of(model, RANK, step).backward()
        except Exception as error:
            return {"step": step, "error": type(error).__name__}
    return {"step": 20}


def main():
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1000  # Else all of the model is in the first bucket.
    folder = pathlib.Path(sys.argv[3])
    join_group(init_method=f"file://{folder}/store", rank=RANK, world_size=RANKS)
    scenarios = [exact, codec_keeps, powersgd_keeps, training, traffic, announced, unbiased, overflow]
    for scenario in [*scenarios, low_rank, sparse, complex_numbers, *([resumed] if RANKS == 2 else []), death]:
        np.savez(folder / f"{scenario.__name__}-{RANK}.npz", **scenario())
    os._exit(0)  # Without a goodbye to the rank that is dead.


main()
