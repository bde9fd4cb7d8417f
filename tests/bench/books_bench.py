#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A byte-level transformer on the King James Bible (Debian's packages bible-kjv and bible-kjv-text),
whose 66 books lie at eight sites: bits per byte of a held-out twentieth of each book, against
training on all books in one place. All trainings see the same number of bytes and take the same
number of steps after each other: pooled training has batches that are eight times as large.

    ./dev bench books [--rounds 10] [--steps 24]

Five minutes on two cores.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import tempfile

from places import BIN
from books import read_books, split_book

SITES = 8
BATCH = 16
MODEL = "transformer:layers=2,width=64,heads=4,context=128"
FEDERATED = ("--clients", SITES, "--batch-size", BATCH)
RUNS = {
    "pooled": ("--clients", 1, "--batch-size", BATCH * SITES),
    "fedavg": FEDERATED,
    "fedavg, ecuq:1+ef up, ecuq:2 down": (
        *FEDERATED,
        *("--codec", "ecuq:1+ef", "--downlink-codec", "ecuq:2"),
    ),
    "diloco": (*FEDERATED, "--strategy", "diloco"),
}


def write_books(folder):
    """Writes each book's first 95 % to folder/train and the rest to folder/test."""
    for part in ("train", "test"):
        (folder / part).mkdir()
    books = read_books()
    for name, lines in books.items():
        train, test = split_book(lines)
        (folder / "train" / f"{name}.txt").write_text(train)
        (folder / "test" / f"{name}.txt").write_text(test)
    return len(books)


def measure(folder, name, flags, options):
    """Returns bits per byte, and megabytes up and down."""
    state = folder / re.sub(r"\W+", "-", name)
    command = [BIN / "fl-sim", "--state", state, "--model", MODEL, *flags]
    command += ["--data", f"text:{folder}/train", "--test", f"text:{folder}/test"]
    command += ["--partition", "by:file", "--keep-moments", "--optimizer", "adamw", "--lr", 0.003]
    command += ["--rounds", options.rounds, "--local-steps", options.steps]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    query = [BIN / "fl-server", "history", "--state", state, "--json"]
    rounds = json.loads(subprocess.run(query, check=True, capture_output=True, text=True).stdout)
    up, down = (sum(entry[key] for entry in rounds) / 1e6 for key in ("bytes_up", "bytes_down"))
    return rounds[-1]["eval_loss"] / math.log(2), up, down


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        count = write_books(folder)
        seen = options.rounds * options.steps * SITES * BATCH * 128
        print(f"{MODEL}; {count} books; {seen / 1e6:.1f} million bytes seen in each training\n")
        print(f"{'training':36}{'bits per byte':>14}{'of pooled':>10}{'MB up':>8}{'MB down':>9}")
        pooled = None
        for run, flags in RUNS.items():
            bits, up, down = measure(folder, run, flags, options)
            pooled = pooled or bits
            sizes = ("-", "-") if run == "pooled" else (f"{up:.1f}", f"{down:.1f}")
            print(f"{run:36}{bits:14.3f}{bits / pooled:10.3f}{sizes[0]:>8}{sizes[1]:>9}", flush=True)


if __name__ == "__main__":
    main()
