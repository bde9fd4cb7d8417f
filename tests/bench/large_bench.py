#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a client with a large model needs: its own memory (RssAnon), all that a round reads and
writes beside it (the page cache counts in RssFile), and the time of a round. One real fl-server and
one fl-client whose training costs nothing (synthetic:N), with coded updates both ways.

    ./dev bench large [--parameters 1000000000] [--rounds 3] [--other BIN] [--limit 1.2]

--other: the folder of another build's programs, whose client takes turns with this one's.
--limit: the client runs in a memory cgroup of that many times the model (cgroup v1 or v2, as root).
"""

import argparse
import contextlib
import os
import pathlib
import re
import tempfile
import time

import places  # noqa: F401  It lets tests/process be imported.
import federation as process_tests
from federation import Federation, wait_until

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


def status_of(pid, field):
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return 1024 * int(found[1]) if found else 0


def measure(folder, bin_folder, options):
    """Runs a federation. Returns the client's peak of RssAnon and the seconds of each round."""
    process_tests.BIN = pathlib.Path(bin_folder)
    federation = Federation(folder)
    model_bytes = 4 * options.parameters
    server = federation.server(
        *("--new-run", "--model", f"synthetic:{options.parameters}", "--min-clients", "1"),
        *("--rounds", options.rounds, "--codec", options.codec, "--downlink-codec", options.codec),
        *("--keep-checkpoints", "2"),
    )
    federation.join("large")
    peak = 0
    with memory_group(int(options.limit * model_bytes)) as enter:
        client = federation.client("large", "--max-parameters", options.parameters)
        enter(client.pid)
        while client.running():
            peak = max(peak, status_of(client.pid, "RssAnon"))
            time.sleep(0.02)
    if client.wait() != 0:
        raise SystemExit(f"the client failed: {client}")
    server.wait()
    rounds = federation.query("SELECT ended_at - started_at FROM round ORDER BY round")
    for program in federation.programs:
        program.kill()
    return peak, [seconds for (seconds,) in rounds if seconds is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--parameters", type=int, default=1_000_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="ecuq:1+ef")
    parser.add_argument("--other")
    parser.add_argument("--limit", type=float, default=0)
    options = parser.parse_args()
    model_bytes = 4 * options.parameters
    for name, bin_folder in [("this", process_tests.BIN), ("other", options.other)]:
        if not bin_folder:
            continue
        with tempfile.TemporaryDirectory() as folder:
            peak, rounds = measure(pathlib.Path(folder), bin_folder, options)
        times = ", ".join(f"{seconds:.1f}" for seconds in rounds)
        print(f"{name}: RssAnon at most {peak / 1e6:.0f} MB, {peak / model_bytes:.2f} models; rounds: {times} s")


if __name__ == "__main__":
    main()
