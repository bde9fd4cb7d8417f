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
import signal
import sqlite3
import subprocess
import sys
import tempfile
import unittest

import needs_torch

import fake_agent

sys.path.insert(0, str(fake_agent.SOURCE / "tests" / "process"))

from federation import BIN, free_port, wait_until

GUIDE = fake_agent.SOURCE / "docs" / "guide"
PAGE = GUIDE / "own-model.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROUNDS_BEFORE_ACCIDENT = 4

# The page's programs, with places that several tests at the same time do not share.
SERVER = """#!/bin/sh
case " $* " in *" enroll "* | *" history "*) exec {bin}/fl-server "$@" ;; esac
rm -f {ready}
exec {bin}/fl-server --listen 127.0.0.1:{port} --admin off --ready-file {ready} "$@"
"""


class Reader:
    """Somebody with a terminal who follows the page."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.own = self.folder / ".own"
        self.own.mkdir(parents=True)
        self.ready = self.own / "ready"
        self.tool("fl-server", SERVER.format(bin=BIN, ready=self.ready, port=free_port()))
        self.tool("fl-client", f'#!/bin/sh\nexec {BIN}/fl-client "$@"\n')
        self.tool("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        paths = [str(fake_agent.PACKAGE), os.environ.get("PYTHONPATH", "")]
        self.out = (self.own / "out").open("wb")
        self.shell = subprocess.Popen(
            ["bash", "-eu"],
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{self.own}:{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            },
            stdin=subprocess.PIPE,
            stdout=self.out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # So that one signal ends all.
        )
        self.blocks = 0

    def tool(self, name, text):
        (self.own / name).write_text(text)
        (self.own / name).chmod(0o755)

    def follow(self, language, text):
        """Does what one block of the page says, and waits until a server that it starts listens."""
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)[1]
            (self.folder / name).write_text(text)
            return
        self.blocks += 1
        done = self.own / f"done-{self.blocks}"
        self.shell.stdin.write(f"{text}\ntouch {done}\n")
        self.shell.stdin.flush()
        wait_until("the block is done", lambda: done.exists() or self.shell.poll() is not None)
        if not done.exists():
            raise AssertionError(f"this block failed:\n{text}\n{self.said()}")
        if re.search(r"^fl-server (?!.*(enroll|history))", text, re.MULTILINE):
            wait_until("the server is ready", self.ready.exists)

    def said(self):
        """All output of the page's commands."""
        logs = [self.own / "out", *sorted(self.folder.glob("**/*log"))]
        return "\n".join(f"{log}:\n{log.read_text()[-3000:]}" for log in logs)

    def query(self, sql):
        file = self.folder / "fl-state" / "history.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as db:
            return db.execute(sql).fetchall()

    def rounds_done(self):
        return self.query("SELECT count(*) FROM round_summary")[0][0]

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.wait()
        self.shell.stdin.close()
        self.out.close()


class Tutorial(unittest.TestCase):
    def follow(self, folder, with_accidents):
        """Returns the reader at the end of the page, and how many programs were killed."""
        reader = Reader(folder)
        self.addCleanup(reader.close)
        accidents = 0
        for language, text in BLOCK.findall(PAGE.read_text()):
            if "kill -9" in text:
                if not with_accidents:
                    continue
                accidents += text.count("kill -9")
                goal = reader.rounds_done() + ROUNDS_BEFORE_ACCIDENT
                wait_until("some rounds are done", lambda: reader.rounds_done() >= goal)
            reader.follow(language, text)
            if "kill -9" in text:
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
        for language, text in BLOCK.findall((GUIDE / "from-flower.md").read_text()):
            reader.follow(language, text)
        self.assertEqual(reader.query("SELECT state, rounds_total FROM run"), [("finished", 20)])
        (best,) = reader.query("SELECT max(eval_accuracy) FROM round_summary")[0]
        self.assertGreater(best, 0.9)


if __name__ == "__main__":
    unittest.main()
