# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a torch module travel, and their way from and to files."""

from __future__ import annotations

import ctypes
import fnmatch
import hashlib
import os
import re
from typing import Any, Callable, Mapping, Sequence, Tuple, Union

import torch

from . import _tensors
from ._tensors import Tensor, TensorFile
from ._torch_names import named_buffers, named_parameters, under_all_names

FROZEN = "frozen."  # Before the digest in the name of a tensor without elements, as fl-client has it.
STATISTICS = ("running_mean", "running_var")  # The last part of a BatchNorm statistic's name.
FORMATS = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "F32",  # As pairs of real and imaginary part.
    torch.complex128: "F64",
}
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

Path = Union[str, "os.PathLike[str]"]
Named = Sequence[Tuple[str, torch.Tensor]]


def is_part(tensor: torch.Tensor) -> bool:
    """Whether this is a tensor that is spread over ranks: a DTensor."""
    return hasattr(tensor, "to_local")


def freeze(module: torch.nn.Module, patterns: Sequence[str]) -> None:
    """Freezes the parameters whose names fit one of the patterns, as in "encoder.*". A BatchNorm
    whose statistics fit one goes into evaluation mode, where they do not move."""
    still = set()
    for pattern in patterns:
        found = [
            (name, tensor)
            for name, tensor in under_all_names(module)
            if fnmatch.fnmatchcase(name, pattern)
            and (isinstance(tensor, torch.nn.Parameter) or is_statistic(name))
        ]
        if not found:
            raise ValueError(f"frozen: no parameter has a name like '{pattern}'")
        for name, tensor in found:
            if is_statistic(name):
                still.add(id(tensor))
            else:
                tensor.requires_grad_(False)
    for part in module.modules():
        if any(id(buffer) in still for buffer in part._buffers.values()):
            part.training = False


def is_statistic(name: str) -> bool:
    return name.rpartition(".")[2] in STATISTICS


def travelling(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """What server and clients exchange: the parameters that are trained, a tied one under its first
    name, and the running means and variances of BatchNorms. Other buffers stay where they are."""
    tensors: list[tuple[str, torch.Tensor]] = [
        (name, parameter)
        for name, parameter in named_parameters(module)
        if parameter.requires_grad
    ]
    tensors += [
        (name, buffer)
        for name, buffer in named_buffers(module)
        if is_statistic(name) and buffer.is_floating_point()
    ]
    return tensors


def spec(name: str, tensor: torch.Tensor) -> Tensor:
    """The tensor as files have it."""
    if tensor.dtype not in FORMATS:
        raise TypeError(
            f"tensor '{name}' is of {tensor.dtype}, which can't be trained here: freeze it, or use "
            "float32, bfloat16, float16 or float64"
        )
    return Tensor(name, real_shape(tensor), FORMATS[tensor.dtype])


def own(tensor: Any) -> torch.Tensor:
    """The numbers themselves, which writes go to; of a tensor that is spread over ranks, those of
    this rank."""
    with torch.no_grad():
        numbers: torch.Tensor = tensor.detach()
        return tensor.detach().to_local() if is_part(tensor) else numbers


def real(tensor: torch.Tensor) -> torch.Tensor:
    """own(), of a complex tensor as pairs."""
    numbers = own(tensor)
    return torch.view_as_real(numbers) if numbers.is_complex() else numbers


def real_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape of the numbers of all ranks."""
    return (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)


def mapped(file: TensorFile, name: str) -> torch.Tensor:
    """A tensor of the file in the file's memory."""
    said = file.spec(name)
    if said.dtype not in TYPES:
        raise TypeError(f"{file.path}: torch has no number format {said.dtype}, as of '{name}'")
    kind = TYPES[said.dtype]
    if said.elements == 0:
        return torch.empty(said.shape, dtype=kind)
    at = file.offset(name)
    if at % _tensors.ITEM_BYTES[said.dtype]:  # Allowed, but slow or wrong on some machines.
        copy = bytearray(file.mapped[at : at + said.bytes])
        return torch.frombuffer(copy, dtype=kind).reshape(said.shape)
    flat = torch.frombuffer(file.mapped, dtype=kind, count=said.elements, offset=at)
    return flat.reshape(said.shape)


def load_all(tensors: Named, file: TensorFile) -> None:
    """Sets the tensors to what the file has under their names."""
    for name, tensor in tensors:
        set_to(name, tensor, file, name)


def values_for(
    name: str, shape: Sequence[int], file: TensorFile, name_in_file: str
) -> torch.Tensor:
    """What the file has for the model's tensor of this name and shape, in the file's memory."""
    values = mapped(file, name_in_file)
    if list(values.shape) != list(shape):
        raise ValueError(
            f"{file.path}: tensor '{name_in_file}' has shape {list(values.shape)}, but the model's "
            f"'{name}' has {list(shape)}"
        )
    return values


def set_to(name: str, tensor: torch.Tensor, file: TensorFile, name_in_file: str) -> None:
    target = real(tensor)
    values = values_for(name, target.shape, file, name_in_file)
    with torch.no_grad():
        target.copy_(values)
        # Stale updates may have made a variance near 0 negative.
        if name.rpartition(".")[2] == "running_var":
            target.clamp_(min=0)


def store_all(tensors: Named, file: TensorFile) -> None:
    """Writes the tensors to the file, in its number formats."""
    with torch.no_grad():
        for name, tensor in tensors:
            if tensor.numel():
                mapped(file, name).copy_(real(tensor))


def frozen_digest(
    module: torch.nn.Module,
    whole: Callable[[str, torch.Tensor], torch.Tensor] = lambda _, tensor: real(tensor).cpu(),
) -> str:
    """SHA-256 of the parameters that are not trained; "" without any. The same values in the same
    number format have the same digest on every device. whole: gives all numbers of a parameter in
    host memory."""
    frozen = sorted(
        ((name, p) for name, p in named_parameters(module) if not p.requires_grad),
        key=lambda item: item[0],
    )
    if not frozen:
        return ""
    digest = hashlib.sha256()
    for name, parameter in frozen:
        digest.update(f"{name} {parameter.dtype} {list(parameter.shape)}\n".encode())
        values = whole(name, parameter).contiguous()
        size = values.numel() * values.element_size()
        if size:
            digest.update((ctypes.c_char * size).from_address(values.data_ptr()))
    return digest.hexdigest()


def _refuse_parts(module: torch.nn.Module) -> None:
    if any(is_part(parameter) for parameter in module.parameters()):
        raise TypeError(
            "the module is sharded over ranks: save and load take one that is whole, as it is "
            "before fully_shard"
        )


def save(module: torch.nn.Module, path: Path) -> None:
    """Writes the file for `fl-server --initial-weights`: what travels, in float32, and the digest of
    what is frozen."""
    _refuse_parts(module)
    tensors = travelling(module)
    shapes = [Tensor(name, real_shape(tensor), "F32") for name, tensor in tensors]
    digest = frozen_digest(module)
    if digest:
        shapes.append(Tensor(FROZEN + digest, (0,), "F32"))
    for name, tensor in tensors:
        spec(name, tensor)
    store_all(tensors, _tensors.create(path, shapes))


def load(checkpoint: Path, module: torch.nn.Module, strict: bool = True) -> None:
    """Sets a module's parameters and running means and variances to those of a checkpoint.

    A tied parameter may stand in the file under any of its names. With `strict` the file must have
    all that travels and nothing that the module has not; parameters with requires_grad=False, which
    do not travel, may be missing."""
    _refuse_parts(module)
    file = _tensors.read(checkpoint)
    names: dict[int, list[str]] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in under_all_names(module):
        names.setdefault(id(tensor), []).append(name)
        tensors[name] = tensor
    if strict:
        _check_names(file, module, names, tensors)
    done = set()
    for name in _without_digest(file):
        if name in tensors and id(tensors[name]) not in done:
            set_to(name, tensors[name], file, name)
            done.add(id(tensors[name]))


def _without_digest(file: TensorFile) -> list[str]:
    """The names of the model's tensors in a file."""
    return [
        name
        for name in file
        if not (re.fullmatch(r"frozen\.[0-9a-f]+", name) and file.spec(name).elements == 0)
    ]


def _check_names(
    file: TensorFile,
    module: torch.nn.Module,
    names: Mapping[int, Sequence[str]],
    tensors: Mapping[str, Any],
) -> None:
    missing = [
        name
        for name, tensor in travelling(module)
        if not any(alias in file for alias in names[id(tensor)])
    ]
    names_in_file = _without_digest(file)
    unknown = [name for name in names_in_file if name not in tensors]
    digest = FROZEN + frozen_digest(module)
    said = []
    if len(names_in_file) < len(file) and digest not in file:
        said.append("it belongs to a model with other frozen parameters")
    if missing:
        said.append(f"it has no {', '.join(missing[:3])}" + (" …" if len(missing) > 3 else ""))
    if unknown:
        said.append(
            f"the module has no {', '.join(unknown[:3])}" + (" …" if len(unknown) > 3 else "")
        )
    if said:
        raise ValueError(f"{file.path}: {'; '.join(said)}")
