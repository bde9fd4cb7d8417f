#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the codecs' error against their bits per value, from ./dev bench codecs --json FILE.

    plot_codecs.py FILE.json PICTURE [PICTURE ...]      a picture's name ends in .svg or .png

Needs the packages of deploy/requirements-plots.txt.
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.hashsalt": "tributary", "font.size": 9})

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import hsv_to_rgb
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import Bbox

COARSE_BITS = 1.5  # The right panel shows codecs with fewer bits and less error than these two.
COARSE_NMSE = 1.06
FINE_BITS = 0.8  # The left panel begins here.
FINE_NMSE = 5
SIDES = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)]


def read(path):
    rows = []
    for row in json.loads(path.read_text()):
        measured = row["gaussian"]
        rows.append((row["codec"], measured["bits"], measured["nmse"], row["is_biased"]))
    return rows


def family(codec):
    return codec.split("+")[0].split(":")[0].split(",")[0]


def colours_of(rows):
    names = list(dict.fromkeys(family(codec) for codec, *_ in rows))
    # The colours are dark enough for text, and neighbours in the list differ.
    colours = [hsv_to_rgb(((i * 0.382) % 1, 0.85, 0.45 + 0.2 * (i % 2))) for i in range(len(names))]
    return dict(zip(names, colours, strict=True))


def merged(rows):
    """Merges the labels of codecs whose marks coincide."""
    found = []
    for codec, bits, nmse, is_biased in sorted(rows, key=lambda row: row[1:3]):
        if found and abs(bits / found[-1][1] - 1) < 0.01 and abs(nmse / found[-1][2] - 1) < 0.01:
            found[-1] = (f"{found[-1][0]}, {codec}", *found[-1][1:])
        else:
            found.append((codec, bits, nmse, is_biased))
    return found


def place_labels(axes, rows, colours, taken):
    """Puts each label at the nearest place around its mark where it overlaps nothing in `taken`."""
    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    for codec, bits, nmse, _ in merged(rows):
        text = None
        for away in (6, 9, 13, 18, 24, 31, 39, 48):
            for x, y in SIDES:
                if text is not None:
                    text.remove()
                text = axes.annotate(
                    codec,
                    (bits, nmse),
                    (away * x, away * y),
                    textcoords="offset points",
                    ha={1: "left", 0: "center", -1: "right"}[x],
                    va={1: "bottom", 0: "center", -1: "top"}[y],
                    color=colours[family(codec)],
                    fontsize=8,
                    arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.5} if away > 9 else None,
                )
                box = text.get_window_extent(renderer).expanded(1.02, 1.05)
                is_free = not any(box.overlaps(other) for other in taken)
                if is_free and inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1):
                    break
            else:
                continue
            break
        taken.append(box)


def boxes_of(axes, bits, nmse, radius):
    """Returns boxes that extend `radius` pixels from each point."""
    points = axes.transData.transform(np.column_stack([bits, nmse]))
    return [
        Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)
        for x, y in points
    ]


def draw(axes, rows, colours, title):
    for codec, bits, nmse, is_biased in rows:
        colour = colours[family(codec)]
        axes.plot(bits, nmse, "o", ms=6, mec=colour, mfc="white" if is_biased else colour, mew=1.4)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("bits per value on the wire, all bytes counted")
    axes.grid(True, color="0.92")
    axes.set_axisbelow(True)
    low, high = axes.get_xlim()
    bound = np.geomspace(low, high, 400)
    axes.plot(bound, 2.0 ** (-2 * bound), "--", color="crimson", lw=1.2, zorder=0)
    axes.set_xlim(low, high)
    axes.figure.canvas.draw()
    taken = boxes_of(axes, [row[1] for row in rows], [row[2] for row in rows], 6)
    place_labels(axes, rows, colours, taken + boxes_of(axes, bound, 2.0 ** (-2 * bound), 2))


def bits_text(value, _):
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"


def plot(rows):
    colours = colours_of(rows)
    lossy = [row for row in rows if row[2] > 0]
    coarse = [row for row in lossy if row[1] < COARSE_BITS and row[2] < COARSE_NMSE]
    fine = [
        row
        for row in lossy
        if row[1] >= FINE_BITS and row[2] < FINE_NMSE and (row not in coarse or row[2] < 0.7)
    ]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 6.4), dpi=110)
    figure.subplots_adjust(left=0.06, right=0.985, top=0.86, bottom=0.16, wspace=0.13)
    for axes, shown in ((left, fine), (right, coarse)):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(bits_text))
        axes.set_xlim(min(row[1] for row in shown) / 1.25, max(row[1] for row in shown) * 1.35)
    left.set_yscale("log")
    left.set_ylim(min(row[2] for row in fine) / 5, max(row[2] for row in fine) * 4)
    right.set_ylim(0.25, COARSE_NMSE)
    left.set_ylabel("error: NMSE = |x - decoded|² / |x|²")
    draw(left, fine, colours, "Codecs of about a bit and more (logarithmic error)")
    draw(right, coarse, colours, "Codecs of fewer bits (linear error)")
    figure.suptitle("What codecs lose and what they cost: a Gaussian vector of 4,194,304 values")
    marks = [
        Line2D([], [], marker="o", ls="", color="0.3", label="unbiased"),
        Line2D(
            [], [], marker="o", ls="", mec="0.3", mfc="white", mew=1.4, label="biased: meant for +ef"
        ),
        Line2D([], [], ls="--", color="crimson", label="lower bound: no code has less error"),
    ]
    figure.legend(
        handles=marks, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 0.955), frameon=False
    )
    exact = [f"{row[0]} ({row[1]:.4g} bits)" for row in rows if row[2] == 0]
    beyond = [
        f"{codec} ({bits:.3g} bits, NMSE {nmse:.3g})"
        for codec, bits, nmse, is_biased in lossy
        if (codec, bits, nmse, is_biased) not in fine + coarse
    ]
    notes = []
    if exact:
        notes.append("Without error: " + ", ".join(exact))
    if beyond:
        notes.append("Outside both panels: " + ", ".join(beyond))
    figure.text(0.06, 0.02, "\n".join(notes), fontsize=8, color="0.3")
    return figure


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    figure = plot(read(pathlib.Path(sys.argv[1])))
    for picture in sys.argv[2:]:
        figure.savefig(picture, metadata={"Date": None} if picture.endswith(".svg") else None)


if __name__ == "__main__":
    main()
