# SPDX-License-Identifier: Apache-2.0
"""The state of hooks.powersgd()."""

from __future__ import annotations

import hashlib
from typing import Any, Mapping

import torch

from ._hook_state import Bucket, State


class PowerSgdState(State):
    """PowerSGD (Vogels 2019), as PyTorch's powerSGD_hook has it: M = P Q^T with P and Q of `rank`
    columns, one power iteration a step. Other than there, tensors that are sent whole have no
    residual (theirs is the difference to the other ranks' gradients, which adds up to zero)."""

    def __init__(
        self,
        rank: int,
        group: Any,
        exact_steps: int,
        feedback: bool,
        warm_start: bool,
        min_compression: float,
        seed: int,
    ):
        if rank < 1:
            raise ValueError(f"the rank is {rank}, not at least 1")
        super().__init__(group)
        self.rank, self.exact_steps, self.min_compression = rank, exact_steps, min_compression
        self.has_feedback, self.warm_start, self._seed = feedback, warm_start, seed
        self._factors: dict[str, torch.Tensor] = {}  # Q by parameter.

    def average(self, bucket: Bucket, buffer: torch.Tensor, index: int, step: int) -> None:
        ranks = self.conductor.ranks
        vector = buffer.detach().to(torch.float32, copy=True)
        if step < self.exact_steps:
            self.conductor.sum(vector)
            buffer.copy_(vector.div_(ranks))
            return
        residual = torch.from_numpy(bucket.residual)
        if self.has_feedback:
            vector += residual.to(vector.device)
        sizes = [int(torch.Size(shape).numel()) for shape in bucket.shapes.values()]
        parts = dict(zip(bucket.shapes, vector.split(sizes)))
        matrices = {
            key: part.view(bucket.shapes[key][0], -1)
            for key, part in parts.items()
            if self._is_worth(bucket.shapes[key])
        }
        whole = [key for key in parts if key not in matrices]
        right = {key: _orthogonal(self._factor(key, m, step)) for key, m in matrices.items()}
        # What is sent whole goes with the P factors.
        left = self._sums([*(m @ right[key] for key, m in matrices.items()),
                           *(parts[key] for key in whole)])  # fmt: skip
        if not all(bool(part.isfinite().all()) for part in left):
            buffer.fill_(float("nan"))  # On all ranks, as the sums are the same.
            return
        left_of = {key: _orthogonal(p) for key, p in zip(matrices, left)}
        sums = self._sums([m.t() @ left_of[key] for key, m in matrices.items()])
        for key, q in zip(matrices, sums):
            q /= ranks
            self._factors[key] = q
        mean = {key: (left_of[key] @ self._factors[key].t()).reshape(-1) for key in matrices}
        mean.update({key: part / ranks for key, part in zip(whole, left[len(matrices) :])})
        result = torch.cat([mean[key] for key in parts])
        if self.has_feedback:
            for key in whole:
                parts[key].copy_(mean[key])
            residual.copy_(vector - result)
        buffer.copy_(result)

    def state_dict(self) -> dict[str, Any]:
        factors = {key: q.cpu().clone() for key, q in self._factors.items()}
        return {**super().state_dict(), "rank": self.rank, "factors": factors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["rank"] != self.rank:
            raise ValueError(f"the state is of rank {state['rank']}, this hook of {self.rank}")
        super().load_state_dict(state)
        self._factors = {key: q.clone() for key, q in state["factors"].items()}

    def _is_worth(self, shape: tuple[int, ...]) -> bool:
        if len(shape) < 2:
            return False
        rows, columns = shape[0], int(torch.Size(shape[1:]).numel())
        rank = min(rows, columns, self.rank)
        return (rows + columns) * rank * self.min_compression < rows * columns

    def _factor(self, key: str, matrix: torch.Tensor, step: int) -> torch.Tensor:
        """The last step's Q; or a random one, the same on all ranks."""
        kept = self._factors.get(key)
        if self.warm_start and kept is not None:
            return kept.to(matrix.device)
        digest = hashlib.blake2b(f"{self._seed} {key} {step}".encode(), digest_size=6).digest()
        draw = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        columns = min(*matrix.shape, self.rank)
        return torch.randn(matrix.shape[1], columns, generator=draw).to(matrix.device)

    def _sums(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The sums over all ranks of these tensors, in one exchange."""
        if not tensors:
            return []
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self.conductor.sum(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors)]


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    return torch.linalg.qr(matrix)[0]
