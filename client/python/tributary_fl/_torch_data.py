# SPDX-License-Identifier: Apache-2.0
"""Batches of a Dataset, a DataLoader or tensors."""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
import torch.utils.data as torch_data


class Data:
    """Examples to train or to measure on.

    data: a torch Dataset (with or without a length), a DataLoader, a tuple or a dict of tensors or
        arrays with the examples along dimension 0, or a list of dicts, each an example.
    examples: how many there are, for data without a length.
    workers: processes that load examples, of a Dataset."""

    def __init__(
        self,
        data: Any,
        examples: int | None = None,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
    ):
        if isinstance(data, Mapping):
            data = Columns({name: _tensor(part, f"'{name}'") for name, part in data.items()})
        elif isinstance(data, (tuple, list)) and not _are_examples(data):
            parts = [_tensor(part, f"part {at}") for at, part in enumerate(data)]
            data = torch_data.TensorDataset(*parts)
        self._data, self._workers, self._collate = data, workers, collate
        self._is_loader = isinstance(data, torch_data.DataLoader)
        self.examples = _count(data) if examples is None else examples

    def batches(self, batch_size: int) -> int:
        """How many batches one pass has."""
        if self._is_loader:
            try:
                return len(self._data)
            except TypeError:  # An IterableDataset without a length.
                return max(1, math.ceil(self.examples / (self._data.batch_size or 1)))
        if isinstance(self._data, torch_data.IterableDataset):
            return max(1, math.ceil(self.examples / batch_size))
        return len(_chunks(self.examples, batch_size))

    def one_pass(
        self, batch_size: int, shuffle: torch.Generator | None, epoch: int = 0
    ) -> Iterator[Any]:
        """The batches of one pass; in a random order if there is a generator. A DataLoader has its
        own batch size and its own order. A set_epoch(), as a DistributedSampler has it, is called before."""
        _tell_epoch(self._data, epoch)
        if self._is_loader:
            return iter(self._data)
        if isinstance(self._data, torch_data.IterableDataset):
            return iter(self._loader(shuffle, batch_size=batch_size))
        if shuffle is None:
            order = torch.arange(self.examples)
        else:
            order = torch.randperm(self.examples, generator=shuffle)
        chunks = [order[begin:end] for begin, end in _chunks(self.examples, batch_size)]
        if isinstance(self._data, torch_data.TensorDataset) and self._collate is None:
            return self._slices(self._data.tensors, chunks)
        if isinstance(self._data, Columns) and self._collate is None:
            return (self._data.rows(chunk) for chunk in chunks)
        return iter(self._loader(shuffle, batch_sampler=[chunk.tolist() for chunk in chunks]))

    @staticmethod
    def _slices(
        tensors: Sequence[torch.Tensor], chunks: Sequence[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, ...]]:
        for chunk in chunks:
            yield tuple(tensor[chunk.to(tensor.device)] for tensor in tensors)

    def _loader(self, generator: torch.Generator | None, **options: Any) -> Any:
        return torch_data.DataLoader(
            self._data,
            num_workers=self._workers,
            collate_fn=self._collate or _batch,
            generator=generator,
            **options,
        )


def _tell_epoch(data: Any, epoch: int) -> None:
    """Calls set_epoch() of a DataLoader or data set, and of the samplers and data sets in it."""
    waiting, told = [data], set()
    while waiting:
        part = waiting.pop()
        if id(part) in told:
            continue
        told.add(id(part))
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)
        inner = (getattr(part, name, None) for name in ("sampler", "batch_sampler", "dataset"))
        waiting += [one for one in inner if one is not None]


class Columns:
    """Tensors by name, with the examples along dimension 0."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self._tensors = dict(tensors)
        sizes = {name: tensor.shape[0] if tensor.dim() else 1 for name, tensor in tensors.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"the columns of the data have unlike numbers of examples: {sizes}")
        (self._examples,) = set(sizes.values())

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {name: tensor[number] for name, tensor in self._tensors.items()}

    def rows(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: tensor[numbers.to(tensor.device)] for name, tensor in self._tensors.items()}


def _are_examples(data: Sequence[Any]) -> bool:
    return isinstance(data, list) and len(data) > 0 and isinstance(data[0], Mapping)


def _tensor(part: Any, where: str) -> torch.Tensor:
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{where} of the data, a {type(part).__name__}, is no tensor or array ({error}): give a "
            "tuple (inputs, targets) or a dict of these, a list of dicts, a Dataset or a DataLoader"
        ) from error


def _batch(examples: list[Any]) -> Any:
    """A batch of a Dataset's examples."""
    if not isinstance(examples[0], Mapping):
        return torch_data.default_collate(examples)
    return {name: _column(name, [one[name] for one in examples]) for name in examples[0]}


def _column(name: str, values: list[Any]) -> Any:
    """Numbers and lists of numbers, as tokenizers and the data sets of Hugging Face have them, become
    a tensor."""
    first = values[0]
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    try:
        if isinstance(first, (bool, int, float)):
            return torch.tensor(values)
        return torch_data.default_collate(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"no batch can be made of the examples' '{name}' ({error}): pad what has unlike lengths, "
            "leave the column out, or give collate=, such as DataCollatorWithPadding of transformers"
        ) from error


def _count(data: Any) -> int:
    counted = data
    if isinstance(data, torch_data.DataLoader):
        # A sampler may take a part of the data set only.
        is_iterable = isinstance(data.dataset, torch_data.IterableDataset)
        counted = data.dataset if is_iterable or data.batch_size is None else data.sampler
    try:
        return len(counted)
    except TypeError:
        raise ValueError(
            "the data have no length: say how many examples there are, by examples= or "
            "eval_examples="
        ) from None


def _chunks(examples: int, batch_size: int) -> list[tuple[int, int]]:
    """Where batches begin and end. A single example that is left goes with the batch before, as a
    BatchNorm can't train on it alone. Batches of one, as for examples of unlike sizes, stay so."""
    ends = list(range(batch_size, examples, batch_size)) + ([examples] if examples else [])
    if batch_size > 1 and len(ends) > 1 and ends[-1] - ends[-2] == 1:
        del ends[-2]
    return list(zip([0, *ends], ends))


def groups(passes: Iterator[Iterator[Any]], size: int) -> Iterator[list[Any]]:
    """Groups of `size` batches; each makes a step. The last one of a pass may be smaller."""
    for one_pass in passes:
        is_empty = True
        while group := list(itertools.islice(one_pass, size)):
            is_empty = False
            yield group
        if is_empty:
            raise ValueError("there are no examples to train on")


def moved(batch: Any, device: torch.device) -> Any:
    """The batch on the device: tensors in tuples, lists and dictionaries."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def batch_examples(batch: Any) -> int:
    """The number of examples in a batch: the size of dimension 0 of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    for part in batch if isinstance(batch, (tuple, list)) else ():
        found = batch_examples(part)
        if found:
            return found
    return 0
