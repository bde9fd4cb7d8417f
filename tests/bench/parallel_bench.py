#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that hold parts of a model, beside the formulas: what they take of memory and send, with --zero
and in grids of --parallel, how long the ranks of a pipeline wait, and how much of the sending is hidden
behind the computing over links of a given rate.

    ./dev bench parallel [--ranks 4] [--rates 1gbit,400mbit]

For the last table two ranks are in network namespaces of their own, and computing is played by
sleeping: a step of eight units. "hidden" is the part of the computing or of the sending, whichever is
shorter, that the step does not take longer; once without and once with the next unit's parameters
under way.
"""

import argparse
import pathlib
import subprocess
import tempfile

import places
from wide_area import WideArea, enter_namespaces

BENCH = places.BIN / "parallel_bench"
GRIDS = places.BIN / "grid_bench"


def overlap_at(rate, folder):
    """The numbers that rank 0 prints."""
    with WideArea(("near", "far"), rate) as area:
        ranks = []
        for rank, place in enumerate(area.addresses):
            command = (BENCH, "overlap", rank, 2, folder / f"store-{rate}", "eth0")
            ranks.append(
                subprocess.Popen(area.command(place, command), stdout=subprocess.PIPE, text=True)
            )
        said = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise SystemExit("a rank failed")
    return [float(number) for number in said[0].split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=4, help="of the first table")
    parser.add_argument("--rates", default="1gbit,400mbit", help="of the links, as tc has them")
    options = parser.parse_args()
    enter_namespaces()
    subprocess.run([BENCH, "memory", str(options.ranks)], check=True)
    for what in ("memory", "experts", "bubbles"):
        print(flush=True)
        subprocess.run([GRIDS, what], check=True)
    print("\nSeconds of a step of two ranks with --zero 3")
    names = ("computing", "sending", "one after the other", "next unit ahead", "hidden", "hidden ahead")
    print(f"{'rate':>9}" + "".join(f"{name:>21}" for name in names))
    with tempfile.TemporaryDirectory() as name:
        for rate in options.rates.split(","):
            *times, plain, ahead = overlap_at(rate, pathlib.Path(name))
            shown = [f"{time:.3f}" for time in times] + [f"{100 * x:.0f} %" for x in (plain, ahead)]
            print(f"{rate:>9}" + "".join(f"{text:>21}" for text in shown), flush=True)


if __name__ == "__main__":
    main()
