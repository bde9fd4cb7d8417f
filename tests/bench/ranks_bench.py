#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much faster a site of two ranks of one core each trains than one process of one core: examples
a second of whole rounds of the real programs, in turn. Each rank has the batches that the one process
has. Prints the ratios, and what each rank sent.

    ./dev bench ranks [HOOK ...]        # by default allreduce and bf16
"""

import pathlib
import random
import re
import statistics
import sys
import tempfile

import places  # noqa: F401  Tells where the programs are.
from federation import Federation, write_images

TURNS = 3
ROUNDS = 4
EXAMPLES = 6000
TRANSFORMER = "transformer:layers=3,width=256,heads=4,context=128"
# Each model, its name in the table, and the examples of a batch.
MODELS = (("lenet", "lenet", 64), ("cnn", "cnn", 64), (TRANSFORMER, "transformer", 8))


def write_text(path):
    words = random.Random(1)
    some = ["".join(words.choices("etaoinshrdlu", k=words.randint(2, 9))) for _ in range(500)]
    path.write_text(" ".join(words.choices(some, k=4_000)))
    return path


def speed(folder, data, model, batch, *flags):
    """Examples a second in the median round, the first one aside, and the MB that each rank sent."""
    federation = Federation(folder)
    run = ("--model", model, "--rounds", ROUNDS, "--lr", 0.01, "--batch-size", batch)
    server = federation.server("--new-run", "--min-clients", 1, "--deadline", 0, *run)
    federation.join("site")
    client = federation.client("site", "--data", data, *flags)
    for program in (client, server):
        if program.wait(600) != 0:
            raise SystemExit(str(program))
    said = client.stderr()
    federation.close()
    rounds = re.findall(r"on (\d+) examples in ([\d.]+) s", said)
    sent = re.findall(r"each sent ([\d.e+]+) MB", said)
    rates = [int(examples) / float(seconds) for examples, seconds in rounds]
    return statistics.median(rates[1:]), sent[-1] if sent else "0"


def main():
    hooks = sys.argv[1:] or ["allreduce", "bf16"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        images = f"idx:{write_images(folder / 'data', EXAMPLES)}"
        text = f"text:{write_text(folder / 'words.txt')}"
        for model, title, batch in MODELS:
            data = text if model == TRANSFORMER else images
            ratios = {hook: [] for hook in hooks}
            sent = {}
            for turn in range(TURNS):
                place = folder / f"{title}-{turn}"
                alone, _ = speed(place, data, model, batch, "--threads", 1)
                for number, hook in enumerate(hooks):
                    site = ("--ranks", 2, "--threads", 2, "--hook", hook)
                    place = folder / f"{title}-{turn}-{number}"
                    rate, sent[hook] = speed(place, data, model, batch, *site)
                    ratios[hook].append(rate / alone)
            for hook in hooks:
                median = statistics.median(ratios[hook])
                print(
                    f"{title:<12} {hook:<12} {median:.2f} x  "
                    f"({min(ratios[hook]):.2f} to {max(ratios[hook]):.2f}), "
                    f"{sent[hook]} MB a rank and round"
                )


if __name__ == "__main__":
    main()
