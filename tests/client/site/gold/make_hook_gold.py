#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes hooks.pt beside this file: what PyTorch's own gradient hooks make of made-up gradients.

    make_hook_gold.py      with the torch of deploy/libtorch.txt as a Python module

The hooks run over Gloo in 2 and 3 processes, in 5 steps of two buckets; the last two steps are
kept. PyTorch's two quantization hooks fail over Gloo, so their arithmetic runs in one process; and
its batched_powerSGD_hook gives a matrix to a function that takes batches of matrices, which is
mended here.
The test computes the same gradients by the same integers.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks as quantization

BUCKETS = [[(3, (12, 10)), (2, (10,)), (1, (6, 5, 3, 3))], [(0, (16, 12)), (4, (7,))]]
STEPS = 5
KEPT = 2
SIZES = (2, 3)


def made_up(count, *seeds):
    """Sums of multiples of 1/512 between -2 and 2, so the same in every program."""
    first = sum(seed * factor for seed, factor in zip(seeds, (104729, 1299709, 15485863)))
    numbers = (torch.arange(count, dtype=torch.int64) * 7919 + first) % 2003 - 1001
    return numbers.to(torch.float32) / 512


def elements(bucket):
    return sum(torch.Size(shape).numel() for _, shape in bucket)


class Bucket:
    """The part that hooks use of torch.distributed.GradBucket."""

    def __init__(self, index, values):
        self._index, self._values = index, values

    def buffer(self):
        return self._values

    def set_buffer(self, values):
        self._values = values

    def index(self):
        return self._index

    def is_last(self):
        return self._index == len(BUCKETS) - 1

    def gradients(self):
        parts, offset = [], 0
        for _, shape in BUCKETS[self._index]:
            count = torch.Size(shape).numel()
            parts.append(self._values[offset : offset + count].view(shape))
            offset += count
        return parts


of_batches = powerSGD_hook._orthogonalize


def orthogonalize(matrices, epsilon=0):
    of_batches(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)


powerSGD_hook._orthogonalize = orthogonalize


def power(rank, epsilon):
    return powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=2,
        min_compression_rate=1,
        orthogonalization_epsilon=epsilon,
    )


def hooks():
    """Our spec, PyTorch's hook and its state."""
    fp16, bf16 = default_hooks.fp16_compress_wrapper, default_hooks.bf16_compress_wrapper
    low_rank, batched = powerSGD_hook.powerSGD_hook, powerSGD_hook.batched_powerSGD_hook
    return [
        ("allreduce", default_hooks.allreduce_hook, None),
        ("fp16", default_hooks.fp16_compress_hook, None),
        ("bf16", default_hooks.bf16_compress_hook, None),
        ("fp16+allreduce", fp16(default_hooks.allreduce_hook), None),
        ("powersgd:1,start=2,rate=1", low_rank, power(1, 1e-8)),
        ("powersgd:2,start=2,rate=1,epsilon=0", low_rank, power(2, 0)),
        ("powersgd:4,start=2,rate=1", low_rank, power(4, 1e-8)),
        ("fp16+powersgd:1,start=2,rate=1", fp16(low_rank), power(1, 1e-8)),
        ("bf16+powersgd:2,start=2,rate=1", bf16(low_rank), power(2, 1e-8)),
        ("batched-powersgd:2,start=2,epsilon=0", batched, power(2, 0)),
    ]


def of_rank(rank, size, store):
    """Returns the result of rank 0."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    results = {}
    for spec, hook, state in hooks():
        for step in range(STEPS):
            for index, bucket in enumerate(BUCKETS):
                values = made_up(elements(bucket), step, rank, index)
                result = hook(state, Bucket(index, values)).wait()
                if isinstance(result, list):
                    result = result[0]
                if step >= STEPS - KEPT:
                    results[f"{size}/{spec}/{step}/{index}"] = result.float().clone()
    dist.destroy_process_group()
    return results


def quantized(size):
    """The arithmetic of PyTorch's quantization hooks, without what they send."""
    results = {}
    for step in range(STEPS - KEPT, STEPS):
        for index, bucket in enumerate(BUCKETS):
            count = elements(bucket)
            whole, rows = torch.zeros(count), 0
            for rank in range(size):
                values = made_up(count, step, rank, index)
                observer = torch.ao.quantization.MinMaxObserver()
                observer(values)
                scale, zero = torch.FloatTensor([*observer.calculate_qparams()])
                codes = quantization._quantize_per_tensor_backend(values, scale, zero)
                whole += quantization._dequantize_per_tensor_backend(codes, scale, zero)

                channels = torch.nn.functional.pad(values, (0, 512 - count % 512)).view(-1, 512)
                observer = torch.ao.quantization.PerChannelMinMaxObserver()
                observer(channels)
                scale, zero = torch.stack(observer.calculate_qparams())
                codes = quantization._quantize_per_channel_backend(channels, scale, zero)
                rows = rows + quantization._dequantize_per_channel_backend(codes, scale, zero)
            results[f"{size}/quantize:8/{step}/{index}"] = whole / size
            rows = torch.flatten(rows)[:count] / size
            results[f"{size}/quantize:8,channel=512/{step}/{index}"] = rows
    return results


def probe():
    """Products and a factorization, whose bits depend on the processor."""
    parts = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for n, m, rank in ((12, 10, 1), (6, 45, 2), (16, 12, 4), (20, 20, 2)):
            matrix = made_up(n * m, 1, n, m).view(1, n, m).to(dtype)
            factor = made_up(m * rank, 2, n, m).view(1, m, rank).to(dtype)
            product = torch.bmm(matrix, factor)
            parts.append(product.float().flatten())
            parts.append(torch.bmm(matrix.transpose(1, 2), product).float().flatten())
            if dtype == torch.float32:
                parts.append(torch.linalg.qr(product)[0].flatten())
    return torch.cat(parts)


def main():
    torch.set_num_threads(1)
    gold = {"probe": probe()}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            children = []
            for rank in range(1, size):
                children.append(os.fork())
                if children[-1] == 0:
                    of_rank(rank, size, f"{folder}/store")
                    os._exit(0)
            gold |= of_rank(0, size, f"{folder}/store")
            if any(os.waitpid(child, 0)[1] for child in children):
                sys.exit("a rank failed")
        gold |= quantized(size)
    torch.save(gold, Path(__file__).with_name("hooks.pt"))


main()
