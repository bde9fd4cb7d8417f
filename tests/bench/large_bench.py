#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a client with a large model needs: its own memory (RssAnon), all that a round reads and
writes beside it (the page cache counts in RssFile), and the time of a round. One real fl-server and
one fl-client whose training costs nothing (synthetic:N), with coded updates both ways.

    ./dev bench large [--parameters 1000000000] [--rounds 3] [--other BIN] [--limit 1.2] [--program]

--other: the folder of another build's programs, whose client takes turns with this one's.
--limit: the client runs in a memory cgroup of that many times the model (cgroup v1 or v2, as root).
--program: a Python program with the package tributary_fl trains, and its agent is measured; beside
    it the tensors that the two exchange in /dev/shm, and the program's own memory. FL_PYTHON names
    a Python with numpy.
"""

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
import time

from places import SOURCE
import federation as process_tests
from federation import Federation, wait_until
from process_table import children_of, memory_of

PROGRAM = """
import sys
import numpy as np
import tributary_fl as fl
from tributary_fl.numpy import Trainer

class AddOnes(Trainer):
    def train(self, weights, task):
        weights["weight"] += np.float32(1)
        return fl.TrainReport(1, 0.0)

weight = np.zeros(int(sys.argv[1]), np.float32)
fl.run(AddOnes({"weight": weight}, 1000), state=sys.argv[2])
"""

V1 = pathlib.Path("/sys/fs/cgroup/memory")
V2 = pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_group(limit_bytes):
    """Yields a function that moves a process into a group with that limit, or that does nothing."""
    if not limit_bytes:
        yield lambda pid: None
        return
    is_v1 = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if is_v1 else V2) / f"tributary-bench-{os.getpid()}"
    group.mkdir()
    name = "memory.limit_in_bytes" if is_v1 else "memory.max"
    (group / name).write_text(str(limit_bytes))
    try:
        yield lambda pid: (group / "cgroup.procs").write_text(str(pid))
    finally:
        wait_until("the group is empty", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def exchanged_bytes():
    """All that lies in folders of trainers in memory (client/learn/process/tensor_folder)."""
    total = 0
    for file in pathlib.Path("/dev/shm").glob("tributary-*/**/*"):
        with contextlib.suppress(OSError):
            total += 512 * file.stat().st_blocks
    return total


def look(client, is_program, peaks, exchanged_before):
    """Keeps the largest values that were seen of a client's memory, by name."""
    now = {"RssAnon": memory_of(client.pid, "RssAnon")}
    if is_program:
        now["/dev/shm"] = exchanged_bytes() - exchanged_before
        now["RssAnon of the program"] = sum(
            memory_of(pid, "RssAnon") for pid in children_of(client.pid)
        )
    for name, value in now.items():
        peaks[name] = max(peaks.get(name, 0), value)


def program_flags(federation, options):
    """The client's flags for a program that trains, and the server's for its model."""
    (federation.folder / "program.py").write_text(PROGRAM)
    python = os.environ.get("FL_PYTHON", sys.executable)
    state = federation.folder / "program-state"
    command = f"{python} {federation.folder / 'program.py'} {options.parameters} {state}"
    flags = ("--trainer", command, "--trainer-env", f"PYTHONPATH={SOURCE / 'client/python'}")
    initial = federation.folder / "initial.safetensors"
    maker = federation.client("maker", *flags, "initial-weights", initial)
    if maker.wait(600) != 0:
        raise SystemExit(f"the program failed: {maker}")
    return flags, ("--model", "custom:large", "--initial-weights", initial)


def measure(folder, bin_folder, options):
    """Runs a federation. Returns the client's largest memory by name, and the seconds of each round."""
    process_tests.BIN = pathlib.Path(bin_folder)
    federation = Federation(folder)
    flags, model = (), ("--model", f"synthetic:{options.parameters}")
    if options.program:
        flags, model = program_flags(federation, options)
    server = federation.server(
        *("--new-run", *model, "--min-clients", "1", "--rounds", options.rounds),
        *("--codec", options.codec, "--downlink-codec", options.codec, "--keep-checkpoints", "2"),
    )
    federation.join("large")
    peaks, exchanged_before = {}, exchanged_bytes()
    with memory_group(int(options.limit * 4 * options.parameters)) as enter:
        client = federation.client("large", "--max-parameters", options.parameters, *flags)
        enter(client.pid)
        while client.running():
            look(client, options.program, peaks, exchanged_before)
            time.sleep(0.02)
    if client.wait() != 0:
        raise SystemExit(f"the client failed: {client}")
    server.wait()
    rounds = federation.query("SELECT ended_at - started_at FROM round ORDER BY round")
    for program in federation.programs:
        program.kill()
    return peaks, [seconds for (seconds,) in rounds if seconds is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--parameters", type=int, default=1_000_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="ecuq:1+ef")
    parser.add_argument("--other")
    parser.add_argument("--limit", type=float, default=0)
    parser.add_argument("--program", action="store_true")
    options = parser.parse_args()
    model_bytes = 4 * options.parameters
    for name, bin_folder in [("this", process_tests.BIN), ("other", options.other)]:
        if not bin_folder:
            continue
        with tempfile.TemporaryDirectory() as folder:
            peaks, rounds = measure(pathlib.Path(folder), bin_folder, options)
        times = ", ".join(f"{seconds:.1f}" for seconds in rounds)
        sizes = "; ".join(
            f"{what} at most {peak / 1e6:.0f} MB, {peak / model_bytes:.2f} models"
            for what, peak in peaks.items()
        )
        print(f"{name}: {sizes}; rounds: {times} s")


if __name__ == "__main__":
    main()
