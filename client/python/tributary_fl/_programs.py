# SPDX-License-Identifier: Apache-2.0
"""Where the programs are: in the folder that FL_BIN names, in the wheel, or on the PATH."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import sys
from typing import Mapping, Sequence

from ._trainer import Error

BUNDLED = pathlib.Path(__file__).resolve().parent / "bin"
PACKAGES = {
    "fl-client": "tributary-client", "fl-server": "tributary-server", "fl-sim": "tributary-sim",
}  # fmt: skip
# This file names the release of libtorch that the wheel's built-in models were made with. Each release
# has an ABI of its own, so no other one will do.
TORCH_RELEASE = "libtorch-release.txt"


def find(name: str) -> str:
    """The path of fl-client, fl-server or fl-sim. Error: it is nowhere."""
    found = in_folders(name) or shutil.which(name)
    if found is None:
        raise Error(
            f"{name} is not installed: use a wheel of tributary-fl that has it, install the Debian "
            f"package {PACKAGES[name]}, or let FL_BIN name the folder where ./dev build has put it"
        )
    return found


def in_folders(name: str) -> str | None:
    """The file of that name in the folder of FL_BIN, or in the wheel."""
    folders = [BUNDLED]
    if os.environ.get("FL_BIN"):
        folders.insert(0, pathlib.Path(os.environ["FL_BIN"]))
    for folder in folders:
        if (folder / name).is_file():
            return str(folder / name)
    return None


def last_error(name: str, lines: Sequence[str], code: int) -> str:
    """The line of its log that says why a program has ended."""
    said = [line for line in lines if line.strip()]
    for line in reversed(said):
        if line.startswith(f"{name}: "):
            return line[len(f"{name}: ") :]
    if code < 0:
        return f"{name} was ended by signal {-code}"
    errors = [line for line in said if " error" in line.lower()]
    return (errors or said or [f"{name} has ended with status {code}"])[-1]


def with_libtorch(environment: Mapping[str, str], folder: pathlib.Path) -> dict[str, str]:
    """The environment in which the programs of a folder find the libtorch of pip's PyTorch, where that
    is the release that they need."""
    changed = dict(environment)
    file = folder / TORCH_RELEASE
    if not file.exists():
        return changed
    try:
        installed = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return changed
    if str(installed.version).partition("+")[0] == file.read_text(encoding="utf-8").strip():
        paths = [str(installed.locate_file("torch/lib")), environment.get("LD_LIBRARY_PATH", "")]
        changed["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    return changed


def _become(name: str) -> None:
    path = in_folders(name)
    if path is None:
        sys.exit(f"this installation of tributary-fl has no {name}")
    os.execve(path, [name, *sys.argv[1:]], with_libtorch(os.environ, pathlib.Path(path).parent))


def client() -> None:
    """The command fl-client."""
    _become("fl-client")


def server() -> None:
    """The command fl-server."""
    _become("fl-server")


def sim() -> None:
    """The command fl-sim."""
    _become("fl-sim")
