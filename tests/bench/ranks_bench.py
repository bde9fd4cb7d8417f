#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much faster a site of two ranks of one core each trains than one process of one core: images a
second of whole rounds of the real programs, in turn. Each rank has the batches that the one process
has. Prints the ratios, and what each rank sent.

    ./dev bench ranks [HOOK ...]        # by default allreduce and bf16
"""

import pathlib
import re
import statistics
import sys
import tempfile

import places  # noqa: F401  Tells where the programs are.
from federation import Federation, write_images

TURNS = 3
ROUNDS = 4
EXAMPLES = 6000
MODELS = ("lenet", "cnn")


def speed(folder, data, model, *flags):
    """Images a second in the median round, the first one aside, and the MB that each rank sent."""
    federation = Federation(folder)
    run = ("--model", model, "--rounds", ROUNDS, "--lr", 0.01, "--batch-size", 64)
    server = federation.server("--new-run", "--min-clients", 1, "--deadline", 0, *run)
    federation.join("site")
    client = federation.client("site", "--data", f"idx:{data}", *flags)
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
        data = write_images(folder / "data", EXAMPLES)
        for model in MODELS:
            ratios = {hook: [] for hook in hooks}
            sent = {}
            for turn in range(TURNS):
                alone, _ = speed(folder / f"{model}-{turn}", data, model, "--threads", 1)
                for number, hook in enumerate(hooks):
                    site = ("--ranks", 2, "--threads", 2, "--hook", hook)
                    rate, sent[hook] = speed(
                        folder / f"{model}-{turn}-{number}", data, model, *site
                    )
                    ratios[hook].append(rate / alone)
            for hook in hooks:
                median = statistics.median(ratios[hook])
                print(
                    f"{model:<6} {hook:<12} {median:.2f} x  "
                    f"({min(ratios[hook]):.2f} to {max(ratios[hook]):.2f}), "
                    f"{sent[hook]} MB a rank and round"
                )


if __name__ == "__main__":
    main()
