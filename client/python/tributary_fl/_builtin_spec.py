# SPDX-License-Identifier: Apache-2.0
"""What --model says about a built-in model. docs/guide/models.md has the forms; what is here reads those
that a server has accepted."""

from __future__ import annotations

import re
from dataclasses import dataclass

# The short names, all for grey images of 28 x 28 pixels and 10 classes.
SHORT = {
    "cnn": "cnn:1x28x28-10",
    "resnet8": "resnet8:1x28x28-10",
    "resnet20": "resnet20:1x28x28-10",
    "mlp": "mlp:784-200-200-10,scale=none",
    "logistic": "logistic:784-10,scale=none",
}
DENSE = re.compile(r"(linear|logistic|mlp):(\d+(?:-\d+)+)")
IMAGES = re.compile(r"(cnn|resnet(\d+)):(\d+)x(\d+)x(\d+)-(\d+)")


@dataclass(frozen=True)
class Spec:
    """text: as --model has it. task: "classification", "regression" or "language". input: the shape of
    one example; of a transformer its context, in tokens."""

    text: str
    family: str
    task: str
    input: tuple[int, ...]
    outputs: int
    hidden: tuple[int, ...] = ()  # The widths of the hidden layers of an mlp.
    blocks: int = 0  # Of each of the three stages of a resnet.
    layers: int = 0  # Of a transformer, as the next two.
    width: int = 0
    heads: int = 0
    experts: int = 0  # 0: it has dense layers in their place.
    top: int = 0  # The experts that a token goes to.
    scales_inputs: bool = False
    scales_targets: bool = False


def parse(text: str) -> Spec:
    """Error: it is no built-in model with weights that could be loaded."""
    form, *parts = SHORT.get(text, text).split(",")
    if form == "transformer" or form.startswith("transformer:"):
        first = form.partition(":")[2]
        return _transformer(text, _settings(text, [first] * bool(first) + parts))
    settings = _settings(text, parts)
    if text == "lenet":
        return Spec(text, "lenet", "classification", (1, 28, 28), 10)
    shape: tuple[int, ...]
    dense, images = DENSE.fullmatch(form), IMAGES.fullmatch(form)
    if dense:
        name = dense[1]
        first_size, *hidden, outputs = map(int, dense[2].split("-"))
        family, shape, blocks = "mlp", (first_size,), 0
    elif images:
        channels, rows, columns, outputs = (int(images[at]) for at in (3, 4, 5, 6))
        name, hidden, shape = images[1], [], (channels, rows, columns)
        family, blocks = ("resnet", (int(images[2]) - 2) // 6) if images[2] else ("cnn", 0)
    else:
        raise ValueError(f"'{text}' is no built-in model: see docs/guide/models.md for what there is")
    is_one_value = name == "linear" or (name != "logistic" and outputs == 1)
    loss = settings.get("loss", "mse" if is_one_value else "cross-entropy")
    task = "classification" if loss == "cross-entropy" else "regression"
    is_scaled = settings.get("scale", "all") == "all"
    return Spec(
        text, family, task, shape, outputs, tuple(hidden), blocks,
        scales_inputs=is_scaled and family == "mlp",
        scales_targets=is_scaled and task == "regression",
    )  # fmt: skip


def _settings(text: str, parts: list[str]) -> dict[str, str]:
    pairs = [part.partition("=") for part in parts]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError(f"'{text}' has something behind a comma that is not KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _transformer(text: str, settings: dict[str, str]) -> Spec:
    sizes = {"layers": 4, "width": 256, "heads": 4, "context": 256, "vocab": 256}
    sizes |= {"experts": 0, "top": 2}
    # What else there is concerns training alone.
    sizes.update((key, int(value)) for key, value in settings.items() if key in sizes)
    return Spec(
        text, "transformer", "language", (sizes["context"],), sizes["vocab"],
        layers=sizes["layers"], width=sizes["width"], heads=sizes["heads"],
        experts=sizes["experts"], top=sizes["top"],
    )  # fmt: skip
