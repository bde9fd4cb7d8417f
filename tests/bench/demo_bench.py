#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the demo's federation (examples/demo.sh) with each codec and prints bytes and accuracy.

A run takes about two minutes on two cores. ./dev bench demo runs this program.

    demo_bench.py [--json FILE] [NAME ...]      NAME: one of the settings below; default: all
"""

import argparse
import contextlib
import json
import pathlib
import sqlite3
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = 0.85
# Name: flags. Most settings change only the uplink codec; some change both directions.
SETTINGS = {
    "fp32": ["--codec", "none"],
    "lossless": ["--codec", "lossless", "--downlink-codec", "lossless"],
    "fp16": ["--codec", "fp16"],
    "top 1%": ["--codec", "topk:0.01+ef"],
    "top 0.1%": ["--codec", "topk:0.001+ef"],
    "int8": ["--codec", "kbit:8"],
    "int4": ["--codec", "kbit:4+ef"],
    "2 bits": ["--codec", "kbit:2+ef"],
    "1 bit": ["--codec", "sign+ef"],
    "terngrad": ["--codec", "terngrad"],
    "powersgd 4": ["--codec", "powersgd:4+ef"],
    "top 0.1% warm-up": ["--codec", "topk:0.001,from=0.25,over=8+ef"],
    "top 0.1% dgc": ["--codec", "topk:0.001,from=0.25,over=8+dgc:0.9", "--momentum", "0"],
    "ecuq both ways": ["--codec", "ecuq:0.5+ef", "--downlink-codec", "ecuq:0.5"],
    "delta both ways": ["--codec", "delta+ecuq:0.5", "--downlink-codec", "ecuq:0.5"],
}


def query(sql):
    with contextlib.closing(sqlite3.connect(ROOT / "demo/server/history.sqlite")) as db:
        return db.execute(sql).fetchall()


def coding_share():
    """Returns the seconds of coding, on both ends, per second of training."""
    ((share,),) = query(
        "SELECT sum(encode_seconds + decode_seconds) / sum(train_seconds) FROM codec_summary"
    )
    return share


def measure(name):
    """Runs the demo once and returns figures from its history."""
    flags = ["--downlink-codec", "none", *SETTINGS[name]]
    if "--downlink-codec" in SETTINGS[name]:
        flags = SETTINGS[name]
    command = [ROOT / "examples/demo.sh", "build/bin", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"the demo failed with {flags}:\n{done.stdout}{done.stderr}")
    rows = query(
        "SELECT seconds, bytes_up, bytes_down, eval_accuracy FROM round_summary ORDER BY round"
    )
    bytes_so_far, bytes_to_target, rounds_to_target = 0, None, None
    for number, (_, up, down, accuracy) in enumerate(rows, 1):
        bytes_so_far += up + down
        if bytes_to_target is None and accuracy is not None and accuracy >= TARGET:
            bytes_to_target, rounds_to_target = bytes_so_far, number
    return {
        "name": name,
        "flags": flags,
        "rounds": len(rows),
        "round_seconds": sum(row[0] for row in rows) / len(rows),
        "bytes_up": sum(row[1] for row in rows),
        "bytes_down": sum(row[2] for row in rows),
        "accuracy": rows[-1][3],
        "bytes_to_target": bytes_to_target,
        "rounds_to_target": rounds_to_target,
        "coding_share": coding_share(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SETTINGS).replace("%", "%%"))
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    options = parser.parse_args()
    for name in options.names:
        if name not in SETTINGS:
            parser.error(f"unknown settings '{name}'; choose from: {', '.join(SETTINGS)}")

    print(
        f"{'codec':<18} {'s/round':>7} {'MB up':>8} {'MB down':>8} {'ratio up':>8} {'accuracy':>8}"
        f"   {'MB to 85%':>10} {'rounds':>6} {'of fp32':>8}   {'coding':>7}"
    )
    results, base = [], None
    for name in options.names or SETTINGS:
        result = measure(name)
        results.append(result)
        base = base or result
        to_target = result["bytes_to_target"]
        megabytes = f"{to_target / 1e6:.3f}" if to_target else "-"
        share = "-"
        if to_target and base["bytes_to_target"]:
            share = f"1/{base['bytes_to_target'] / to_target:.1f}"
        print(
            f"{name:<18} {result['round_seconds']:>7.2f} {result['bytes_up'] / 1e6:>8.3f}"
            f" {result['bytes_down'] / 1e6:>8.3f} {base['bytes_up'] / result['bytes_up']:>8.1f}"
            f" {result['accuracy']:>8.2%}   {megabytes:>10}"
            f" {result['rounds_to_target'] or '-':>6} {share:>8}   {result['coding_share']:>7.2%}",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
