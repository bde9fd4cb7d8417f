#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What attacks cost a running federation of ten. For each attack of attacks.py windows without and
with it follow each other, and the rounds of a window with it are compared with the mean of the
windows before and after: so a machine that becomes slower, or a history that grows, is not taken for
the attack. After each window with it an enrolled client comes in, and another one over a line with
round trips of 250 ms, while the attack goes on. The attacker runs on the same machine and takes its
part of the processors.

    ./dev bench attacks [--pairs 3] [--seconds 5] [ATTACK ...]
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import statistics
import tempfile
import time

import places  # noqa: F401  It lets tests/process be imported.
from attacks import ATTACKS, Target
from federation import Federation, wait_until
from process_table import memory_of
from tunnels import Meter

CLIENTS = 10
FLAGS = f"--model synthetic:100000 --rounds 1000000 --min-clients {CLIENTS} --deadline 2 --admin 127.0.0.1:0"
SETTLE_S = 1
COMES_IN_MAX_S = 40
TRIP_S = 0.125  # One way.
LATE = ("late", "far")


def enrol(folder):
    """A federation whose copies need not enrol anybody."""
    template = Federation(folder)
    server = template.server("--model", "synthetic:1")
    for name in [*(f"client-{number}" for number in range(CLIENTS)), *LATE, "evil-trainer"]:
        template.join(name)
    template.join("evil", "evaluator")
    server.signal(signal.SIGTERM)
    server.wait()
    return template


def rounds_in(federation, seconds):
    def newest():
        return federation.query("SELECT ifnull(max(round), 0) FROM round_summary")[0][0]

    before, began = newest(), time.monotonic()
    time.sleep(seconds)
    return (newest() - before) / (time.monotonic() - began)


class Attacked:
    """One federation and its attacker."""

    def __init__(self, template, folder, attack):
        self.federation = template.copy(folder)
        self.server = self.federation.server("--new-run", *FLAGS.split())
        for number in range(CLIENTS):
            self.federation.client(f"client-{number}")
        wait_until("rounds", lambda: self.federation.rounds_done() > 20)
        host, port = self.server.ready["admin"].rsplit(":", 1)
        self.is_ready = multiprocessing.Event()
        self.attack = attack
        self.target = Target(self.federation, (host, int(port)), self.is_ready)
        self.line = Meter(self.federation.port, TRIP_S)
        far = self.federation.folder / "far" / "identity" / "identity.json"
        far.write_text(json.dumps({"server": f"127.0.0.1:{self.line.port}"}))

    @contextlib.contextmanager
    def under_attack(self):
        self.is_ready.clear()
        attackers = [
            multiprocessing.Process(target=self.attack, args=(self.target,), daemon=True)
            for _ in range(getattr(self.attack, "processes", 1))
        ]
        for attacker in attackers:
            attacker.start()
        self.is_ready.wait(10)
        try:
            yield
        finally:
            for attacker in attackers:
                attacker.kill()
                attacker.join()

    def await_rounds(self):
        """After an attacker and late clients have left, perhaps with a task that nobody does."""
        before = self.federation.rounds_done()
        wait_until("rounds go on", lambda: self.federation.rounds_done() > before + 5)
        time.sleep(SETTLE_S)

    def comes_in_after(self, name):
        """Seconds, or None: it did not come in."""

        def times():
            return self.server.stderr().count(f"{name} is here")

        before, began = times(), time.monotonic()
        client = self.federation.client(name)
        try:
            wait_until("it is in", lambda: times() > before, COMES_IN_MAX_S)
            return time.monotonic() - began
        except AssertionError:
            return None
        finally:
            client.signal(signal.SIGINT)
            client.wait()

    def close(self):
        self.line.close()
        self.federation.close()


def in_words(times):
    """The worst of them."""
    if None in times:
        return f"not in {COMES_IN_MAX_S} s"
    return f"{max(times):.1f} s"


def measure(template, folder, attack, pairs, seconds):
    attacked = Attacked(template, folder, attack)
    before = memory_of(attacked.server.pid, "VmRSS") >> 20
    controls, during, late, far = [rounds_in(attacked.federation, seconds)], [], [], []
    for _ in range(pairs):
        with attacked.under_attack():
            time.sleep(SETTLE_S)
            during.append(rounds_in(attacked.federation, seconds))
            late.append(attacked.comes_in_after("late"))
            far.append(attacked.comes_in_after("far"))
        attacked.await_rounds()
        controls.append(rounds_in(attacked.federation, seconds))
    after = memory_of(attacked.server.pid, "VmRSS") >> 20
    ratios = [
        2 * rate / max(controls[i] + controls[i + 1], 1e-9) for i, rate in enumerate(during)
    ]
    print(
        f"| {attack.__name__} | {statistics.mean(controls):.1f} | {statistics.mean(during):.1f}"
        f" | {', '.join(f'{100 * ratio:.0f}' for ratio in ratios)}"
        f" | {100 * statistics.median(ratios):.0f} % | {in_words(late)} | {in_words(far)}"
        f" | {before} to {after} MiB |",
        flush=True,
    )
    attacked.close()


def main():
    parser = argparse.ArgumentParser()
    names = {attack.__name__: attack for attack in ATTACKS}
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(names))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    wrong = set(options.attacks) - set(names)
    if wrong:
        parser.error(f"there is no attack {', '.join(wrong)}; there are {', '.join(names)}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    print(
        "| attack | rounds/s without | with | ratios, % | median | a client is in after"
        " | over 250 ms | server's memory |\n|---|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory(prefix="attacks-bench-") as folder:
        template = enrol(pathlib.Path(folder) / "template")
        for name in options.attacks or names:
            measure(
                template, pathlib.Path(folder) / name, names[name], options.pairs, options.seconds
            )


if __name__ == "__main__":
    main()
