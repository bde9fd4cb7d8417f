#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a GPU saves a client: the time of a round's training and of coding its update, beside the
same client on all cores of the CPU, in turn. Whole rounds of the real programs; each figure is that
of the median round, the first one aside.

    ./dev bench gpu [--only-gpu] [CODEC ...]         # by default six of them

"code" is encoding alone; "save" all that a client does with an update until it is kept (residual,
digest, files), without waiting for the disk."""

import os
import pathlib
import re
import statistics
import sys
import tempfile

import places  # noqa: F401  Tells where the programs are.
from federation import Federation, write_images

os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # The tests' helpers hide GPUs.
ROUNDS = 5
EXAMPLES = 2000
MODEL = "mlp:784-8192-4096-10"  # 40 million parameters.
CODECS = ("none", "ecuq:2+ef", "kbit:4", "eden:1", "topk:0.01+ef", "powersgd:4+ef")


def seconds(folder, data, codec, device):
    """Returns how long training, coding the update and keeping it took in the median round."""
    federation = Federation(folder)
    run = ("--model", MODEL, "--rounds", ROUNDS, "--lr", 0.01, "--batch-size", 64, "--codec", codec)
    steps = ("--local-steps", 20, "--deadline", 0, "--min-clients", 1)
    server = federation.server("--new-run", *run, *steps)
    federation.join("site")
    client = federation.client("site", "--data", data, "--device", device)
    for program in (client, server):
        if program.wait(600) != 0:
            raise SystemExit(str(program))
    found = federation.query(
        "SELECT train_seconds, encode_seconds, save_seconds - sync_seconds FROM task WHERE round > 1"
    )
    federation.close()
    return [statistics.median(times) for times in zip(*found, strict=True)]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = f"idx:{write_images(folder / 'data', EXAMPLES)}"
        only_gpu = sys.argv[1:2] == ["--only-gpu"]
        devices = ("cuda",) if only_gpu else ("cpu", "cuda")
        codecs = sys.argv[2 if only_gpu else 1 :] or CODECS
        where = "a GPU" if only_gpu else f"{os.cpu_count()} cores and on a GPU"
        print(f"{MODEL}, seconds of a round on {where}")
        print(f"{'codec':<14} {'train':>18} {'code':>18} {'save':>18}")
        for codec in codecs:
            place = re.sub(r"\W", "-", codec)
            found = [seconds(folder / f"{place}-{d}", data, codec, d) for d in devices]
            cells = (" / ".join(f"{s:.4f}" for s in each) for each in zip(*found, strict=True))
            print(f"{codec:<14} {' '.join(f'{cell:>18}' for cell in cells)}", flush=True)


if __name__ == "__main__":
    main()
