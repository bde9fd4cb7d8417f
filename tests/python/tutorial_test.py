# SPDX-License-Identifier: Apache-2.0
"""Follows docs/guide/own-model.md word for word: writes its programs, runs its commands in a shell, one
block after the other, and compares the model with that of a run without the accidents. Follows
docs/guide/from-flower.md, too.

FL_BIN names the folder of the built programs."""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import sqlite3
import sys
import tempfile
import unittest

import needs_torch

import fake_agent

sys.path.insert(0, str(fake_agent.SOURCE / "tests" / "process"))

import document_reader
from federation import BIN, free_port, wait_until

GUIDE = fake_agent.SOURCE / "docs" / "guide"
PAGE = GUIDE / "own-model.md"
ROUNDS_BEFORE_ACCIDENT = 4

# The page's programs, with places that several tests at the same time do not share, and with one seed,
# so that models can be compared.
SERVER = """#!/bin/sh
case " $* " in *" enroll "* | *" history "*) exec {bin}/fl-server "$@" ;; esac
rm -f {ready}
exec {bin}/fl-server --listen 127.0.0.1:{port} --admin off --ready-file {ready} --seed 0 "$@"
"""


class Reader(document_reader.Reader):
    """One who starts servers and clients by hand, on this machine."""

    def __init__(self, folder):
        self.ready = pathlib.Path(folder) / ".own" / "ready"
        paths = [str(fake_agent.PACKAGE), os.environ.get("PYTHONPATH", "")]
        super().__init__(
            folder,
            tools={
                "fl-server": SERVER.format(bin=BIN, ready=self.ready, port=free_port()),
                "fl-client": f'#!/bin/sh\nexec {BIN}/fl-client "$@"\n',
                "python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
            },
            environment={"PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        )

    def follow(self, block):
        """Also waits until a server that the block starts listens."""
        super().follow(block)
        if re.search(r"^fl-server (?!.*(enroll|history))", block.text, re.MULTILINE):
            wait_until("the server is ready", self.ready.exists)

    def query(self, sql):
        file = self.folder / "fl-state" / "history.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as db:
            return db.execute(sql).fetchall()

    def rounds_done(self):
        return self.query("SELECT count(*) FROM round_summary")[0][0]


class Tutorial(unittest.TestCase):
    def follow(self, folder, with_accidents):
        """Returns the reader at the end of the page, and how many programs were killed."""
        reader = Reader(folder)
        self.addCleanup(reader.close)
        accidents = 0
        for block in document_reader.blocks_of(PAGE.read_text()):
            kills = block.text.count("kill -9")
            if kills:
                if not with_accidents:
                    continue
                accidents += kills
                goal = reader.rounds_done() + ROUNDS_BEFORE_ACCIDENT
                wait_until("some rounds are done", lambda: reader.rounds_done() >= goal)
            reader.follow(block)
            if kills:
                self.assertLess(reader.rounds_done(), 60, "the run was over before the accidents")
        return reader, accidents

    def test_the_page_is_right_and_accidents_change_nothing(self):
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            calls = [
                pool.submit(self.follow, pathlib.Path(folder.name) / name, name == "page")
                for name in ("page", "undisturbed")
            ]
            (reader, accidents), (undisturbed, none) = [call.result() for call in calls]
        self.assertEqual((accidents, none), (2, 0))
        sql = "SELECT digest FROM checkpoint WHERE version = 60"
        self.assertEqual(reader.query("SELECT state FROM run"), [("finished",)])
        self.assertEqual(reader.query(sql), undisturbed.query(sql))
        self.assertEqual(len(reader.query(sql)), 1)
        (accuracy,) = re.findall(r"accuracy on digits .*: (.*)", reader.said())
        self.assertGreater(float(accuracy), 0.9)
        self.assertIn("round 8/8", (reader.folder / "line.log").read_text())

    def test_the_page_for_users_of_flower_is_right(self):
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        reader = Reader(pathlib.Path(folder.name) / "page")
        self.addCleanup(reader.close)
        for block in document_reader.blocks_of((GUIDE / "from-flower.md").read_text()):
            reader.follow(block)
        self.assertEqual(reader.query("SELECT state, rounds_total FROM run"), [("finished", 20)])
        (best,) = reader.query("SELECT max(eval_accuracy) FROM round_summary")[0]
        self.assertGreater(best, 0.9)


if __name__ == "__main__":
    unittest.main()
