# SPDX-License-Identifier: Apache-2.0
"""What the sub-commands make of a run's records: pictures, comparisons."""

import json
import signal
import unittest
import xml.etree.ElementTree

from federation import FederationTest

RUN = ("--model", "synthetic:5000", "--min-clients", 2, "--lr", "0.05")


class Records(FederationTest):
    names = ("a", "b")

    def run_to_end(self, federation, *flags):
        server = federation.server("--new-run", *RUN, *flags)
        for program in [server, *[federation.client(name) for name in self.names]]:
            self.expect_exit(program)

    def expect_refusal(self, federation, words, *arguments):
        code, out, err = federation.server_command(*arguments)
        self.assertEqual(code, 1, out)
        self.assertIn(words, err)

    def test_a_run_is_drawn_and_one_without_rounds_is_not(self):
        federation = self.make()
        picture = federation.folder / "run.svg"
        self.expect_refusal(federation, "nothing to plot", "history", "--plot", picture)
        self.assertFalse(picture.exists())
        self.run_to_end(federation, "--rounds", 3)
        code, out, err = federation.server_command("history", "--plot", picture)
        self.assertEqual(code, 0, err)
        self.assertIn(f"run 2 with 3 rounds is drawn in {picture}", out)
        root = xml.etree.ElementTree.parse(picture).getroot()
        texts = [element.text for element in root.iter() if element.tag.endswith("text")]
        self.assertIn("Run 2 of synthetic:5000", texts)
        self.assertIn("loss", texts)
        self.expect_refusal(federation, "no run 7", "history", "--run", 7, "--plot", picture)
        self.expect_refusal(federation, "nonesuch", "history", "--plot", "/nonesuch/run.svg")

    def test_two_runs_are_compared(self):
        federation = self.make()
        self.run_to_end(federation, "--rounds", 3)
        self.run_to_end(federation, "--rounds", 2, "--codec", "qsgd:8")
        code, out, err = federation.server_command("compare", 2, 3)
        self.assertEqual(code, 0, err)
        for line in (r"--codec\s+\"none\"\s+\"qsgd:8\"", r"rounds\s+3 of 3\s+2 of 2"):
            self.assertRegex(out, line)
        compared = json.loads(federation.server_command("compare", 2, 3, "--json")[1])
        sums = federation.query(
            "SELECT sum(bytes_up), sum(bytes_down) FROM round GROUP BY run_id ORDER BY run_id"
        )
        for run, (up, down) in zip(compared["runs"], sums):
            self.assertEqual((run["bytes_up"], run["bytes_down"]), (up, down))
        settings = {each["setting"]: each["values"] for each in compared["settings"]}
        self.assertEqual(settings, {"rounds": [3, 2], "codec": ["none", "qsgd:8"]})
        self.expect_refusal(federation, "no run 9", "compare", 2, 9)


if __name__ == "__main__":
    unittest.main()
