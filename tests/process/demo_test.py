# SPDX-License-Identifier: Apache-2.0
"""examples/demo.sh on a terminal, as ./dev demo runs it, with one short round."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import tempfile
import termios
import time
import unittest
import urllib.request
import xml.etree.ElementTree

from federation import BIN, SOURCE, wait_until
from site_runs import is_running

COLUMNS = 90
WAIT_MAX_S = 400  # Twelve programs start, and read 70,000 images.
IMAGES = pathlib.Path("/usr/share/datasets/fashion-mnist")


def children_of(parent):
    found = []
    for folder in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{folder}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(folder))
    return found


class Terminal:
    """A program whose controlling terminal is a new one. `shown` is all that it has written."""

    def __init__(self, folder, *command):
        self.child, self.master = pty.fork()
        if self.child == 0:
            os.chdir(folder)
            os.execv(command[0], list(map(str, command)))
        size = struct.pack("HHHH", 30, COLUMNS, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        self.shown = ""
        self.end = time.monotonic() + WAIT_MAX_S

    def read(self):
        """Reads what comes next; False at the end."""
        ready, _, _ = select.select([self.master], [], [], max(0, self.end - time.monotonic()))
        if not ready:
            raise AssertionError(f"after {WAIT_MAX_S} s:\n{self.shown}")
        with contextlib.suppress(OSError):  # The last process has closed the terminal.
            come = os.read(self.master, 65536).decode()
            self.shown += come
            return come != ""
        return False

    def read_until(self, pattern):
        """Returns the match."""
        while not (found := re.search(pattern, self.shown)):
            if not self.read():
                raise AssertionError(f"it never wrote {pattern}:\n{self.shown}")
        return found

    def wait(self):
        """Returns the program's exit code."""
        while self.read():
            pass
        return self.exit_code()

    def exit_code(self):
        child, self.child = self.child, None
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def close(self):
        """Closes the terminal's window, if it is open."""
        if self.master is not None:
            os.close(self.master)
            self.master = None
        if self.child is not None:
            return self.exit_code()


@unittest.skipUnless((BIN / "libfl-torch.so").exists(), "built without libtorch")
@unittest.skipUnless(IMAGES.exists(), "there is no dataset-fashion-mnist")
class Demo(unittest.TestCase):
    def start(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "examples").mkdir()
        script = shutil.copy(SOURCE / "examples/demo.sh", self.folder / "examples")
        terminal = Terminal(self.folder, script, BIN, "--rounds", 1, "--local-steps", 3)
        self.addCleanup(terminal.close)
        return terminal, terminal.read_until(r"Watch it at +(http://[\d.:]+/)\r\n")

    def test_a_window_that_is_closed_ends_all_programs(self):
        terminal, _ = self.start()
        programs = children_of(terminal.child)
        self.assertGreater(len(programs), 11)  # A server, ten clients, an evaluator.
        self.assertEqual(terminal.close(), 129)
        wait_until("their end", lambda: not any(map(is_running, programs)))

    def test_a_terminal_shows_the_address_one_line_that_changes_and_a_plot(self):
        terminal, address = self.start()
        with urllib.request.urlopen(address[1], timeout=60) as answer:
            self.assertIn(b"<title>Tributary</title>", answer.read())
        with urllib.request.urlopen(address[1] + "api/status", timeout=60) as answer:
            self.assertEqual(json.load(answer)["model"], "lenet")
        self.assertEqual(terminal.wait(), 0, terminal.shown)

        live, _, rest = terminal.shown[address.end() :].partition("\r\n")
        start, *states = live.split("\r\x1b[K")
        self.assertEqual(start, "", "each state replaces the one before")
        self.assertGreater(len(states), 3)
        for state in states:
            self.assertRegex(state, r"^  \[[#.]{24}\] (waiting for clients|round 1 of 1|\S)")
            self.assertLess(len(state), COLUMNS)
        self.assertRegex(states[-1], r"\[#{24}\] round 1 of 1, accuracy [\d.]+%, loss [\d.]+$")
        self.assertRegex(rest, r"(?m)^1 .* 10/10 .* %\r$")
        self.assertRegex(rest, r"plot +demo/accuracy.svg: ")
        plot = xml.etree.ElementTree.parse(self.folder / "demo/accuracy.svg").getroot()
        self.assertTrue(plot.tag.endswith("svg"))


if __name__ == "__main__":
    unittest.main()
