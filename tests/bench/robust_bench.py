#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs each rule of --aggregate against each attack, on Fashion-MNIST with fl-sim.

Ten clients with data of Dirichlet 0.5, of which none, one or two are malicious; logistic regression, 20 rounds of 20
steps. The figure is the mean test accuracy of the last three rounds in %. For the backdoor it is
followed by the part of triggered test images that the last version takes for class 0. Then the same with nine clients, of
which three collude: they know the honest updates and send the same. Each result is kept, and is not run again.
./dev bench robust runs this program.

    robust_bench.py [--table]       only print the table of kept results
"""

import argparse
import concurrent.futures
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FL_BIN", ROOT / "build/bin"))
RESULTS = ROOT / "docs/results/robust.json"
SCRATCH = ROOT / "build/robust"
DATA = pathlib.Path(os.environ.get("FL_DATA", "/usr/share/datasets")) / "fashion-mnist"
RULES = [
    "mean",
    "median",
    "trimmed:2",
    "krum:2",
    "multikrum:2,5",
    "geomedian",
    "centered-clip:1",
    "nnm+trimmed:2",
    "nnm+geomedian",
]
ATTACKS = ["sign-flip:3", "ipm:3", "alie:1.5", "label-flip", "backdoor:3"]
CASES = [(0, "none")] + [(malicious, attack) for malicious in (1, 2) for attack in ATTACKS]
COLLUDING_RULES = [
    "mean",
    "median",
    "trimmed:3",
    "krum:3",
    "multikrum:3,3",
    "geomedian",
    "centered-clip:1",
    "nnm+trimmed:3",
    "nnm+geomedian",
]
# By clients of a round: rules, and cases of (malicious, attack).
GROUPS = {
    10: (RULES, CASES),
    9: (COLLUDING_RULES, [(0, "none"), (3, "ipm:0.1"), (3, "ipm:0.6"), (3, "ipm:3"), (3, "alie:1.5")]),
}
FLAGS = (
    "--threads 1 --data fashion-mnist --test fashion-mnist:test "
    "--model logistic --partition dirichlet:0.5 --rounds 20 --local-steps 20 --batch-size 32 --lr 0.05 "
    "--momentum 0.9 --codec none"
).split()
SIDE, TRIGGER = 28, 4


def sim(state, *flags):
    """Runs fl-sim and returns its rounds."""
    shutil.rmtree(state, ignore_errors=True)
    report = state.with_suffix(".json")
    command = [BIN / "fl-sim", "--state", state, "--json", report, *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"fl-sim failed with {flags}:\n{done.stderr}")
    return json.loads(report.read_text())


def write_triggered():
    """Writes the test images of all classes but 0, with the trigger and the label 0."""
    folder = SCRATCH / "triggered"
    folder.mkdir(parents=True, exist_ok=True)
    images = gzip.decompress((DATA / "t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((DATA / "t10k-labels-idx1-ubyte.gz").read_bytes())
    chosen = bytearray()
    count = 0
    for i, label in enumerate(labels[8:]):
        if label == 0:
            continue
        image = bytearray(images[16 + i * SIDE * SIDE : 16 + (i + 1) * SIDE * SIDE])
        for row in range(TRIGGER):
            image[row * SIDE : row * SIDE + TRIGGER] = b"\xff" * TRIGGER
        chosen += image
        count += 1
    size = count.to_bytes(4, "big")
    (folder / "t10k-images-idx3-ubyte").write_bytes(images[:4] + size + images[8:16] + chosen)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(labels[:4] + size + bytes(count))
    return f"idx:{folder}:test"


def backdoor_success(state, triggered):
    """The last version's accuracy on triggered images, by a round that changes nothing."""
    last = max(state.glob("checkpoints/**/*.safetensors"))
    flags = "--clients 1 --min-clients 1 --model logistic --rounds 1 --local-steps 1 --lr 1e-12".split()
    data = ["--data", triggered, "--test", triggered, "--initial-weights", last]
    return sim(state.with_name(state.name + "-backdoor"), *flags, *data)[-1]["eval_accuracy"]


def measure(clients, rule, malicious, attack, triggered):
    state = SCRATCH / f"{clients}-{rule}-{malicious}-{attack}".replace(":", "_").replace(",", "_")
    flags = ["--clients", str(clients), "--min-clients", str(clients)]
    flags += ["--malicious", str(malicious), "--attack", attack] if malicious else []
    rounds = sim(state, *FLAGS, "--aggregate", rule, *flags)
    result = {
        "clients": clients,
        "rule": rule,
        "malicious": malicious,
        "attack": attack,
        "accuracies": [round["eval_accuracy"] for round in rounds],
    }
    if attack.startswith("backdoor"):
        result["backdoor"] = backdoor_success(state, triggered)
    shutil.rmtree(state, ignore_errors=True)
    return result


def shown(result):
    if result is None:
        return "-"
    last = [accuracy or 0 for accuracy in result["accuracies"][-3:]]
    text = f"{100 * sum(last) / len(last):.1f}"
    return f"{text} ({100 * result['backdoor']:.0f})" if "backdoor" in result else text


def key(run):
    """The key that tells one result from the others. Results without a number of clients have ten."""
    return run.get("clients", 10), run["rule"], run["malicious"], run["attack"]


def table(results):
    found = {key(run): run for run in results}
    blocks = []
    for clients, malicious in ((10, 1), (10, 2), (9, 3)):
        rules, cases = GROUPS[clients]
        columns = [case for case in cases if case[0] in (0, malicious)]
        lines = [f"{malicious} of {clients} malicious", ""]
        lines.append("| rule | " + " | ".join(attack for _, attack in columns) + " |")
        lines.append("|---|" + "---|" * len(columns))
        for rule in rules:
            cells = [shown(found.get((clients, rule, *case))) for case in columns]
            lines.append(f"| `{rule}` | " + " | ".join(cells) + " |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at the same time")
    chosen = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    done = {key(run) for run in results}
    wanted = [(n, rule, *case) for n, (rules, cases) in GROUPS.items() for case in cases for rule in rules]
    missing = [one for one in wanted if one not in done]
    if missing and not chosen.table:
        triggered = write_triggered()
        with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
            runs = [pool.submit(measure, *one, triggered) for one in missing]
            for run in concurrent.futures.as_completed(runs):
                results.append(run.result())
                lines = ",\n".join(map(json.dumps, results))
                RESULTS.write_text(f"[\n{lines}\n]\n")
    print(table(results))


if __name__ == "__main__":
    main()
