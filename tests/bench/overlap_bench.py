#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the sums of gradients hides behind the backward pass, over a link of a given rate: two
machines of one rank each, in network namespaces, train a transformer as one client. For each rate and
size of buckets it prints the seconds of a round in which a rank computed, in which sums were under
way, and which part of them was hidden: nobody waited for it. No more can be hidden than the backward
pass takes, two thirds of the computing: the last column is the part of that, or of the sums if they
are shorter.

    ./dev bench overlap [--rates 1gbit,300mbit] [--bucket-mb 1,4,25] [--rounds 3]

About six minutes on two cores with nothing else on them: with less, ranks wait for each other's turn
on a core, and that counts as waiting for a sum.
"""

import argparse
import pathlib
import tempfile

import places  # noqa: F401  Tells where the programs are, and the modules below.
import compare
from wide_area import enter_namespaces

MODEL = "transformer:layers=3,width=256,heads=4,context=128"
STEPS = 12


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rates", default="1gbit,300mbit", help="of the link, as tc has them")
    parser.add_argument("--bucket-mb", default="1,4,25")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text", type=pathlib.Path, help="a folder of *.txt instead of the Bible")
    options = parser.parse_args()
    enter_namespaces()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        books = compare.prepare_books(folder, options.text)
        print(f"{MODEL}; seconds of a round of {STEPS} steps")
        print(f"{'rate':>8}{'bucket':>9}{'compute':>9}{'sums':>7}{'hidden':>8}{'of what can be':>16}")
        for rate in options.rates.split(","):
            for size in options.bucket_mb.split(","):
                flags = ("--hook", "allreduce", "--topology", "ring", "--bucket-mb", size)
                way = compare.Way(
                    "overlap", (), flags, compare.SITES[:2], is_one_site=True, ranks=1, model=MODEL
                )
                place = folder / f"{rate}-{size}"
                training = compare.Training(way, books, place, options.rounds, STEPS, rate)
                training.run()
                # The first round has the beginning of all programs in it.
                ((compute, sums, hidden),) = training.query(
                    "SELECT avg(compute_seconds), avg(exposed_seconds + hidden_seconds),"
                    " sum(hidden_seconds) / sum(exposed_seconds + hidden_seconds)"
                    " FROM site_summary WHERE round > 1"
                )
                possible = hidden * sums / min(sums, compute * 2 / 3)
                print(
                    f"{rate:>8}{size + ' MB':>9}{compute:9.2f}{sums:7.2f}"
                    f"{100 * hidden:6.0f} %{100 * possible:14.0f} %",
                    flush=True,
                )


if __name__ == "__main__":
    main()
