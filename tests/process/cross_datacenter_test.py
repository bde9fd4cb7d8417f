# SPDX-License-Identifier: Apache-2.0
"""examples/cross-datacenter: the whole comparison in small, in network namespaces with shaped links."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

from federation import BIN, SOURCE, WAIT_MAX_S

OWN_NAMESPACES = "unshare --user --map-root-user --net --mount --uts --pid --fork --mount-proc"
SHAPED = (
    "ip link add one type veth peer name two"
    " && tc qdisc add dev one root tbf rate 1mbit burst 32kb latency 1s"
)


def can_shape_links():
    try:
        command = [*OWN_NAMESPACES.split(), "sh", "-c", SHAPED]
        return subprocess.run(command, capture_output=True, timeout=WAIT_MAX_S).returncode == 0
    except FileNotFoundError:
        return False


@unittest.skipUnless((BIN / "fl-rank").exists(), "built without libtorch")
class CrossDatacenter(unittest.TestCase):
    def test_both_ways_train_over_slow_links_and_say_what_that_costs(self):
        if not can_shape_links():
            self.skipTest("no shaped links in namespaces of one's own: no iproute2, or not allowed")
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        words = random.Random(1)
        for name in ("one", "two", "three", "four"):
            lines = [" ".join(words.choices(["in", "the", "beginning"], k=9)) for _ in range(400)]
            (folder / f"{name}.txt").write_text("\n".join(lines))
        options = ("--text", folder, "--rounds", 2, "--steps", 6, "--timed-rounds", 2)
        options += ("--alone", 1)
        command = [sys.executable, SOURCE / "examples/cross-datacenter/compare.py", *options]
        command += ["--rates", "10mbit", "--only", "fp16|ecuq:1", "--json", folder / "found.json"]
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=3 * WAIT_MAX_S
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = json.loads((folder / "found.json").read_text())
        self.assertEqual(list(found), ["in step, fp16", "diloco, ecuq:1+ef, 2"])
        parameters = 124_672
        for name, (rounds, use, pace, steps) in found.items():
            self.assertEqual(steps, 6, name)
            self.assertEqual(len(rounds), 2, name)
            self.assertGreater(rounds[0][0], rounds[1][0], "the loss falls")
            self.assertEqual(list(pace), ["null", "10mbit"])
            self.assertTrue(all(0 < part < 1 for part in use.values()), use)
        # A datacenter sends 4/3 of the gradients in 16 bits in each step, and more when a round
        # begins; the federation sends about one bit of each parameter in each round.
        _, _, _, up, _ = found["in step, fp16"][0][-1]
        self.assertTrue(1 < up / (12 * parameters * 2 * 4 / 3) < 2, up)
        _, _, bits, up, _ = found["diloco, ecuq:1+ef, 2"][0][-1]
        self.assertTrue(0.8 < bits < 1.2, bits)
        self.assertLess(up, 2 * parameters / 8 * 1.6)


if __name__ == "__main__":
    unittest.main()
