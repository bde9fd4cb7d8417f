#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden/*.npz with numpy: an array x of each type, and what numpy converts it to.

    make_npz_golden.py FOLDER
"""

import pathlib
import sys
from typing import Any

import numpy as np

TYPES = "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split()


def values(kind: str) -> Any:
    """Four examples of three values each, the extreme ones first."""
    if kind == "?":
        return np.array([0, 1, 1] * 4, "?").reshape(4, 3)
    dtype = np.dtype("<" + kind)
    some = np.arange(12).astype(dtype)
    if dtype.kind == "f":
        finest = np.finfo(dtype if kind != "f8" else np.float32)
        some[:6] = [finest.max, finest.min, finest.tiny, finest.smallest_subnormal, np.nan, -0.0]
        some[6:] = (np.arange(6) - 2.5) / 3
    else:
        limits = np.iinfo(dtype)
        some[:4] = [limits.max, limits.min, limits.max // 3, limits.min // 3]
    return some.reshape(4, 3)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    labels = np.array([2, 0, 1, 2])
    sites = np.array(["Oslo", "Zürich", "東京", "Oslo"])
    for kind in TYPES:
        x = values(kind)
        name = folder / f"{kind.replace('?', 'bool')}.npz"
        with np.errstate(over="ignore"):
            np.savez(name, x=x, y=labels, expected=x.astype("<f4"))
    images = np.arange(2 * 3 * 4 * 5, dtype="u1").reshape(2, 3, 4, 5)
    targets = np.array([[0.5, -1], [2, 3e10]], "f8")
    np.savez_compressed(folder / "compressed.npz", x=images, y=targets, site=sites[:2])
    numbers = np.array([-1, 300, -1, 2], "i2")
    codes = np.array([b"b", b"", b"ab", b"b"])
    arrays = {"x": values("f4"), "y": labels.astype("u1"), "site": sites, "number": numbers}
    np.savez(folder / "groups.npz", **arrays, code=codes, word=np.array(["b", "a", "ab", "b"], "S"))


main()
