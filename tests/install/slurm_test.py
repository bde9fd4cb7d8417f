# SPDX-License-Identifier: Apache-2.0
"""deploy/slurm/site.sbatch beside programs that stand for Slurm's: what the ranks are started with,
and how a job ends before its time is over."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

SOURCE = Path(os.environ["FL_SOURCE"])
SCRIPT = SOURCE / "deploy" / "slurm" / "site.sbatch"
SRUN = """#!/bin/bash
trap 'echo ended >> "$TOLD"; exit ${ENDS_WITH:-0}' TERM
echo "$MASTER_ADDR $MASTER_PORT $*" >> "$TOLD"
[ -z "${ENDS_AT_ONCE:-}" ] || exit "$ENDS_AT_ONCE"
while :; do sleep 0.05; done
"""
SCONTROL = """#!/bin/bash
# There are so many lines that a reader of only the first one ends this program by a signal.
if [ "$1" = show ]; then printf 'node%s\\n' {1..20000}; else echo "scontrol $*" >> "$TOLD"; fi
"""


class Slurm(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tributary-slurm-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.told = self.folder / "told"
        (self.folder / "bin").mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            path = self.folder / "bin" / name
            path.write_text(text)
            path.chmod(0o755)
        self.site = self.folder / "site"
        (self.site / "state" / "identity").mkdir(parents=True)
        (self.site / "site-secret").write_text("secret")

    def start(self, *arguments, **variables):
        environment = os.environ | {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "TOLD": str(self.told),
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "TRIBUTARY_FOLDER": str(self.site),
            "TRIBUTARY_DATA": "idx:/data/digits",
        }
        return subprocess.Popen(
            ["bash", SCRIPT, *arguments], env=environment | variables, stderr=subprocess.PIPE, text=True
        )

    def lines(self):
        return self.told.read_text().splitlines() if self.told.exists() else []

    def end(self, job):
        error = job.communicate(timeout=60)[1]
        return job.returncode, error

    def test_all_ranks_meet_at_the_first_node(self):
        job = self.start("--threads", "4", ENDS_AT_ONCE="0")
        self.assertEqual(self.end(job), (0, ""))
        (line,) = self.lines()
        self.assertTrue(line.startswith("node1 24711 "), line)
        self.assertIn(f"fl-client --site --site-secret-file {self.site}/site-secret", line)
        self.assertIn(f"--state {self.site}/state --data idx:/data/digits --device auto", line)
        self.assertTrue(line.endswith("--stay --threads 4"), line)

    def test_a_failure_is_the_jobs_and_is_not_queued_again(self):
        self.assertEqual(self.end(self.start(ENDS_AT_ONCE="3")), (3, ""))
        self.assertEqual(len(self.lines()), 1)

    def test_before_its_time_is_over_a_job_ends_cleanly_and_is_queued_again(self):
        job = self.start()
        until = time.monotonic() + 60
        while not self.lines() and time.monotonic() < until:
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(self.end(job), (0, ""))
        self.assertEqual(self.lines()[1:], ["ended", "scontrol requeue 4711"])

    def test_what_is_missing_is_named(self):
        (self.site / "site-secret").unlink()
        code, error = self.end(self.start())
        self.assertEqual(code, 2)
        self.assertIn(f"error: {self.site}/site-secret is missing: join first", error)
        code, error = self.end(self.start(TRIBUTARY_DATA=""))
        self.assertNotEqual(code, 0)
        self.assertIn("say where the data are", error)
        self.assertEqual(self.lines(), [])


if __name__ == "__main__":
    unittest.main()
