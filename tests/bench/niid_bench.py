#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs NIID-Bench (Li 2022) on Fashion-MNIST with fl-sim and compares with published figures.

LeNet, 10 parties, 50 rounds of 10 local epochs, batch 64, SGD 0.01 with momentum 0.9 and weight
decay 1e-5. Each result is kept with its seed, and is not run again. A run takes about forty minutes
on two cores. ./dev bench niid runs this program.

The partition labels:3 is drawn by fl-sim. The partition drawn:3 has the labels that the replication
of the published figures has drawn.

    niid_bench.py [--seeds 0,1] [PARTITION/METHOD ...]      for example dirichlet:0.5/scaffold
    niid_bench.py --table                                   only print the table of kept results
"""

import argparse
import gzip
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results/niid.json"
ROUNDS = 50
# A party whose training diverges, as SCAFFOLD's may on two classes, is left out of that round.
FLAGS = (
    "--clients 10 --min-clients 5 --data fashion-mnist --test fashion-mnist:test --model lenet "
    "--local-epochs 10 --batch-size 64 --lr 0.01 --momentum 0.9 --weight-decay 1e-5 --codec none"
).split()
METHODS = {
    "fedavg": "fedavg",
    "fedprox": "fedprox:mu=0.01",
    "scaffold": "scaffold",
    "fednova": "fednova",
}
# The best accuracy over the rounds in %, as mean and deviation over seeds, in the order of METHODS.
# From Flower's replication (baselines/niid_bench).
PUBLISHED = {
    "iid": [(89.23, 0.45), (89.42, 0.09), (89.33, 0.27), (89.36, 0.09)],
    "dirichlet:0.5": [(88.09, 0.29), (88.15, 0.42), (88.44, 0.25), (88.22, 0.12)],
    "labels:3": [(82.43, 1.52), (82.99, 0.48), (80.32, 5.03), (81.97, 1.34)],
    "drawn:3": [(82.43, 1.52), (82.99, 0.48), (80.32, 5.03), (81.97, 1.34)],
    "labels:2": [(78.10, 2.51), (78.05, 0.99), (33.8, 41.0), (71.67, 2.34)],
}
# The labels of each party as the replication draws them, by seed (NumPy's default_rng). The draw
# matters more than the method: which party has which labels, and how many parties share a label.
DRAWN = {
    0: "086 152 230 301 486 596 697 765 859 928",
    1: "045 179 201 389 423 584 628 724 865 908",
    2: "082 124 284 306 487 591 680 752 826 935",
    42: "076 148 206 320 459 571 684 753 819 976",
}
LABELS = pathlib.Path("/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz")
IDX_HEADER_BYTES = 8


def load():
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def drawn_parts(seed):
    """Writes a file for --partition that splits each label's examples equally among its parties."""
    labels = gzip.decompress(LABELS.read_bytes())[IDX_HEADER_BYTES:]
    parts = [[] for _ in DRAWN[seed].split()]
    for label in range(10):
        owners = [p for p, has in enumerate(DRAWN[seed].split()) if str(label) in has]
        examples = [i for i, of in enumerate(labels) if of == label]
        random.Random(f"{seed}/{label}").shuffle(examples)
        for share, owner in enumerate(owners):
            parts[owner] += examples[share :: len(owners)]
    file = ROOT / "build/niid-parts.json"
    file.write_text(json.dumps(parts))
    return f"file:{file}"


def measure(partition, method, seed, rounds):
    """Runs one case and returns its accuracies by round."""
    state = ROOT / "build/niid"
    shutil.rmtree(state, ignore_errors=True)
    report = ROOT / "build/niid.json"
    cut = drawn_parts(seed) if partition == "drawn:3" else partition
    flags = ["--partition", cut, "--strategy", METHODS[method], "--rounds", str(rounds)]
    seeds = ["--seed", str(seed), "--partition-seed", str(seed)]
    command = [ROOT / "build/bin/fl-sim", "--state", state, "--json", report, *FLAGS, *flags, *seeds]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"fl-sim failed with {flags}:\n{done.stdout}")
    figures = json.loads(report.read_text())
    return {
        "partition": partition,
        "method": method,
        "seed": seed,
        "rounds": rounds,
        "accuracies": [round["eval_accuracy"] for round in figures],
        "seconds": sum(round["seconds"] for round in figures),
    }


def table(results):
    lines = [f"{'partition':<15}{'method':<10}{'seeds':>6}{'best':>16}{'published':>16}  within"]
    for partition, row in PUBLISHED.items():
        for method, (mean, deviation) in zip(METHODS, row):
            best = [
                100 * max(accuracy for accuracy in run["accuracies"] if accuracy is not None)
                for run in results
                if (run["partition"], run["method"]) == (partition, method)
                and run["rounds"] == ROUNDS
            ]
            if not best:
                continue
            ours = statistics.mean(best)
            spread = f" ±{statistics.stdev(best):.2f}" if len(best) > 1 else ""
            verdict = "or above" if ours >= mean - deviation else "BELOW"
            lines.append(
                f"{partition:<15}{method:<10}{len(best):>6}{f'{ours:.2f}{spread}':>16}"
                f"{f'{mean:.2f} ±{deviation:.2f}':>16}  {verdict}"
            )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="PARTITION/METHOD")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="others are kept but not shown")
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    everything = [f"{partition}/{method}" for partition in PUBLISHED for method in METHODS]
    for name in chosen.runs:
        if name not in everything:
            parser.error(f"unknown case {name}; choose from: {' '.join(everything)}")
    results = load()
    done = {(run["partition"], run["method"], run["seed"], run["rounds"]) for run in results}
    for name in [] if chosen.table else chosen.runs or everything:
        for seed in map(int, chosen.seeds.split(",")):
            partition, method = name.split("/")
            if partition == "drawn:3" and seed not in DRAWN:
                parser.error(f"drawn:3 has only the seeds {', '.join(map(str, DRAWN))}")
            if (partition, method, seed, chosen.rounds) in done:
                continue
            results.append(measure(partition, method, seed, chosen.rounds))
            RESULTS.write_text("".join(["[\n", ",\n".join(map(json.dumps, results)), "\n]\n"]))
    print(table(results))


if __name__ == "__main__":
    main()
