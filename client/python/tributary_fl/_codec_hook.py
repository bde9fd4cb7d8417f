# SPDX-License-Identifier: Apache-2.0
"""The state of hooks.codec()."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any, Sequence

import numpy as np
import torch

from . import codec as _codec
from ._hook_state import Bucket, State, Vector

PARTS_MIN = 4096  # Values of a part that are worth a second exchange.


class CodedBucket(Bucket):
    """A bucket and its parts, one for each rank or a single one, with their coders."""

    def __init__(
        self, shapes: dict[str, Sequence[int]], residual: Vector, ranks: int, own: int, threads: int
    ):
        super().__init__(shapes, residual)
        self.parts = [slice(0, residual.size)]
        self.own = self.parts[0]
        if ranks > 1:
            cuts = _cuts(list(self.shapes.values()), ranks)
            self.parts = [slice(a, b) for a, b in zip(cuts, cuts[1:])]
            self.own = self.parts[own]
        layouts = [_pieces(self.shapes, part) for part in self.parts]
        self.coders = [_codec.Coder(layout, threads) for layout in layouts]
        # Codes the mean of the own part, which has a residual of its own.
        self.mean_coder = _codec.Coder(layouts[own], threads) if ranks > 1 else None


class CodecState(State):
    def __init__(self, spec: str, group: Any, exchange: str, seed: int, threads: int):
        if exchange not in ("auto", "gather", "parts"):
            raise ValueError(f"exchange is '{exchange}', not 'auto', 'gather' or 'parts'")
        self.spec = spec
        has_feedback, has_velocity = _codec.keeps(spec)
        if has_velocity:
            raise ValueError(f"{spec}: a hook keeps no momentum; the optimizer has one")
        _codec.Coder(1).encode(spec, np.zeros(1, np.float32))  # Refuses what can't be coded here.
        super().__init__(group)
        self.has_feedback = has_feedback
        self.exchange, self._seed, self._threads = exchange, seed, threads

    def make_bucket(self, shapes: dict[str, Sequence[int]], residual: Vector) -> CodedBucket:
        ranks = self.conductor.ranks
        is_large = residual.size >= PARTS_MIN * ranks
        in_parts = self.exchange == "parts" or (
            self.exchange == "auto" and ranks > 2 and is_large
        )
        if residual.size < ranks or ranks == 1:
            in_parts = False
        return CodedBucket(
            shapes, residual, ranks if in_parts else 1, self.conductor.rank, self._threads
        )

    def whole_residual(self, bucket: CodedBucket) -> Vector:
        """With what the code of the own part's mean has lost: as it is a mean, and this rank's
        vector counts for one of all, it goes there so many times."""
        whole = bucket.residual.copy()
        if bucket.mean_coder is not None and bucket.mean_coder.residual is not None:
            whole[bucket.own] += self.conductor.ranks * bucket.mean_coder.residual
        return whole

    def average(self, bucket: CodedBucket, buffer: torch.Tensor, index: int, step: int) -> None:
        vector = np.ascontiguousarray(buffer.detach().to("cpu", torch.float32).numpy())
        residual = bucket.residual.copy()
        payloads = self._encode_parts(bucket, vector, residual, index, step)
        if bucket.mean_coder is None:
            received = self._swap(bucket, payloads * self.conductor.ranks)
            mean = self._mean(bucket.coders[0], received)
        else:
            mean = self._mean_of_parts(bucket, payloads, index, step)
        if mean is None:
            # The loss scaler sees it, as it sees an overflow without a hook.
            buffer.fill_(float("nan"))
            return
        bucket.residual = residual
        buffer.copy_(torch.from_numpy(mean))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "spec": self.spec}

    def _swap(self, bucket: CodedBucket, payloads: list[bytes]) -> list[bytes]:
        """Each rank's payload of what this rank adds up: its own part, or the whole."""
        own = bucket.coders[self.conductor.rank if len(bucket.coders) > 1 else 0]
        return self.conductor.swap(payloads, [own.payload_bytes_max] * self.conductor.ranks)

    def _encode_parts(
        self, bucket: CodedBucket, vector: Vector, residual: Vector, index: int, step: int
    ) -> list[bytes]:
        """The payloads of all parts. Of no bytes, if one of them can't be coded."""
        payloads = []
        for number, (part, coder) in enumerate(zip(bucket.parts, bucket.coders)):
            coder.residual = residual[part] if self.has_feedback else None
            seeds = self._seeds(index, step, number, self.conductor.rank)
            payloads.append(self._encode(coder, vector[part], step, seeds))
        return payloads if all(payloads) else [b""] * len(payloads)

    def _encode(
        self, coder: _codec.Coder, vector: Vector, step: int, seeds: tuple[int, int]
    ) -> bytes:
        try:
            return coder.encode(
                self.spec, vector, round=step + 1, seed=seeds[0], shared_seed=seeds[1]
            )[0]
        except ValueError as error:
            # All ranks must take part in the exchange, whatever this one has.
            warnings.warn(f"gradients that {self.spec} can't code become NaN on all ranks: {error}")
            return b""

    def _mean(self, coder: _codec.Coder, payloads: list[bytes]) -> Vector | None:
        """The mean of what these decode to, added up in the order of the ranks: the same bits
        everywhere. None: a rank could not code its vector."""
        if not all(payloads):
            return None
        total: Vector = coder.decode(payloads[0])
        other = np.empty_like(total)
        for payload in payloads[1:]:
            total += coder.decode(payload, other)
        total /= np.float32(len(payloads))
        return total

    def _mean_of_parts(
        self, bucket: CodedBucket, payloads: list[bytes], index: int, step: int
    ) -> Vector | None:
        received = self._swap(bucket, payloads)
        rank, coder = self.conductor.rank, bucket.mean_coder
        assert coder is not None
        mean = self._mean(bucket.coders[rank], received)
        payload, kept = b"", None if coder.residual is None else coder.residual.copy()
        if mean is not None:
            payload = self._encode(coder, mean, step, self._seeds(index, step, rank, -1))
        most = [one.payload_bytes_max for one in bucket.coders]
        parts = self.conductor.swap([payload] * self.conductor.ranks, most)
        if not all(parts):
            coder.residual = kept
            return None
        whole = np.empty(bucket.residual.size, np.float32)
        for part, one, decoder in zip(bucket.parts, parts, bucket.coders):
            decoder.decode(one, whole[part])
        return whole

    def _seeds(self, index: int, step: int, part: int, rank: int) -> tuple[int, int]:
        """Seeds of a code: of this rank, and of all ranks. Rank -1: of a mean."""

        def seed(*numbers: int) -> int:
            text = " ".join(map(str, (self._seed, step, index, part, *numbers)))
            return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

        return seed(rank), seed()


def _cuts(shapes: Sequence[Sequence[int]], parts: int) -> list[int]:
    """Where to cut a vector of these tensors into parts of about the same size: between rows, where
    that moves a cut by no more than an eighth of a part."""
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    total = sum(sizes)
    cuts = []
    for number in range(1, parts):
        cut, begin = total * number // parts, 0
        for shape, size in zip(shapes, sizes):
            if begin <= cut < begin + size:
                row = size // shape[0] if len(shape) > 1 else 1
                nearest = begin + round((cut - begin) / row) * row
                if abs(nearest - cut) * 8 * parts <= total:
                    cut = nearest
                break
            begin += size
        cuts.append(cut)
    return [0, *cuts, total]


def _pieces(shapes: dict[str, tuple[int, ...]], part: slice) -> dict[str, list[int]]:
    """The layout of a part of a vector: whole rows keep their tensor's other sizes."""
    layout = {}
    begin = 0
    for key, shape in shapes.items():
        size = int(np.prod(shape, dtype=np.int64))
        first, last = max(part.start, begin) - begin, min(part.stop, begin + size) - begin
        begin += size
        if first >= last:
            continue
        row = size // shape[0] if len(shape) > 1 else 1
        is_rows = len(shape) > 1 and first % row == 0 and last % row == 0
        layout[key] = [(last - first) // row, *shape[1:]] if is_rows else [last - first]
    return layout
