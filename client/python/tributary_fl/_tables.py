# SPDX-License-Identifier: Apache-2.0
"""Tables as the inputs of a built-in model: the formula of docs/guide/models.md."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from typing import Any, Mapping, Union

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Schema = Union[str, "os.PathLike[str]", Mapping[str, Any]]

# What stands for a missing value, in small letters.
MISSING = {"", "?", "na", "n/a", "#n/a", "nan", "none", "null", "<na>"}


def is_table(examples: Any) -> bool:
    """Whether it has columns with names: a data frame, a dict of columns, or a list of dicts."""
    if isinstance(examples, (list, tuple)):
        return bool(examples) and isinstance(examples[0], Mapping)
    return hasattr(examples, "keys")


def inputs_of(table: Any, schema: Schema | None) -> Floats:
    """A row of inputs for each row of the table. With a schema its columns, in its order, and an input
    for each word of a column of words; else all columns, in their order, which are numbers."""
    columns = _columns(table)
    if schema is None:
        wanted: Mapping[str, Any] = {name: "number" for name in columns}
    else:
        wanted = _read(schema)["columns"]
    parts = []
    for name, words in wanted.items():
        values = columns.get(_normal(name))
        if values is None:
            raise ValueError(f"the table has no column '{name}'; it has: {', '.join(columns)}")
        parts += [_numbers(values, name)] if words == "number" else _words(values, name, words)
    return np.stack(parts, axis=1)


def _read(schema: Schema) -> Mapping[str, Any]:
    if isinstance(schema, Mapping):
        return schema
    with open(schema, encoding="utf-8-sig") as file:
        read: Mapping[str, Any] = json.load(file)
        return read


def _columns(table: Any) -> dict[str, Any]:
    if isinstance(table, (list, tuple)):
        return {_normal(name): [row[name] for row in table] for name in table[0]}
    return {_normal(str(name)): table[name] for name in table.keys()}


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip())


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    # pandas has a NaN that is a float, and NA, which is not equal to itself either.
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _number(value: Any, name: str) -> float:
    if _is_missing(value):
        return math.nan
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return float(value.strip().lower() == "true")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"column '{name}' has {value!r}, which is no number: name the words of the column in the "
            "schema that the members had, schema=FILE, or leave the column out"
        ) from None


def _numbers(values: Any, name: str) -> Floats:
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    return np.array([_number(value, name) for value in values], np.float64)


def _words(values: Any, name: str, words: list[str]) -> list[Floats]:
    """An input for each word: 1 where it stands, 0 elsewhere. A missing word is 0 everywhere."""
    places = {_normal(word): place for place, word in enumerate(words)}
    hot = np.zeros((len(words), len(values)))
    for row, value in enumerate(values):
        place = None if value is None else places.get(_normal(str(value)))
        if place is not None:
            hot[place, row] = 1
        elif not _is_missing(value):
            raise ValueError(
                f"column '{name}' has {value!r}, which is not one of the {len(words)} words that the "
                "schema has for it"
            )
    return list(hot)
