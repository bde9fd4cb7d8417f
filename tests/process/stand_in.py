# SPDX-License-Identifier: Apache-2.0
"""Stands for the commands of a tutorial that need root or systemd, so that a test can follow it without
either: `sudo`, `apt`, `chown`, `install`, `systemctl` and `journalctl`, by the name that comes first.

    stand_in.py FOLDER NAME ARGUMENT…

It runs the services' real command lines, from deploy/systemd/, with the places of FOLDER/places.json, and
waits until they say that they are ready, as systemd does. tests/install/deb_test.sh follows the same
tutorials with the real commands."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

START_MAX_S = 100
STOP_MAX_S = 100
SOURCE = pathlib.Path(os.environ.get("FL_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
NAMES = ("sudo", "apt", "chown", "install", "systemctl", "journalctl")
LOG_HEAD = re.compile(r"^\d{4}-\d\d-\d\dT\S+ \w+ ")


def tools(folder):
    """The scripts for a reader's own folder of programs, name to text."""
    line = f'#!/bin/sh\nexec {sys.executable} {pathlib.Path(__file__).resolve()} {folder} NAME "$@"\n'
    return {name: line.replace("NAME", name) for name in NAMES}


class Unit:
    """A service of deploy/systemd/, and its process."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name.removesuffix(".service")
        template, at, instance = self.name.partition("@")
        text = (SOURCE / "deploy" / "systemd" / f"{template}{at}.service").read_text()
        text = text.replace("%i", instance)
        for place, here in json.loads((folder / "places.json").read_text()).items():
            text = text.replace(place, here)
        self.command = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)[1])
        self.log, self.pid_file = folder / f"{self.name}.log", folder / f"{self.name}.pid"

    def pid(self):
        """The id of the running process, or None. One that nobody has waited for does not run."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self.pid_file.read_text())
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            return None if state == "Z" else pid
        return None

    def start(self):
        if self.pid():
            return 0
        name = f"tributary-stand-in-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, self.log.open("ab") as log:
            manager.bind("\0" + name)
            manager.settimeout(0.1)
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": "@" + name},
            )
            self.pid_file.write_text(str(process.pid))
            if self.hears_ready(manager):
                if os.fork() == 0:  # Somebody must listen for as long as the service runs.
                    self.hears_ready(manager, is_manager=True)
                    os._exit(0)
                return 0
        print(f"Job for {self.name}.service failed, see 'journalctl -u {self.name}'", file=sys.stderr)
        return 1

    def hears_ready(self, manager, is_manager=False):
        """Whether the service says that it is ready. `is_manager`: listens until the service ends."""
        end = time.monotonic() + START_MAX_S
        while self.pid() and (is_manager or time.monotonic() < end):
            with contextlib.suppress(TimeoutError):
                if b"READY=1" in manager.recv(4096) and not is_manager:
                    return True
        return False

    def stop(self):
        pid = self.pid()
        if pid:
            os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + STOP_MAX_S
        while self.pid() and time.monotonic() < end:
            time.sleep(0.02)
        return 1 if self.pid() else 0


def systemctl(folder, words):
    verb, *rest = words
    now = "--now" in rest
    code = 0
    for name in (word for word in rest if not word.startswith("-")):
        unit = Unit(folder, name)
        if verb in ("stop", "restart") or verb == "disable" and now:
            code = unit.stop() or code
        if verb in ("start", "restart") or verb == "enable" and now:
            code = unit.start() or code
        if verb == "reload":
            os.kill(unit.pid(), signal.SIGHUP)
        if verb == "is-active":
            print("active" if unit.pid() else "inactive")
            code = 0 if unit.pid() else 3
    return code


def journalctl(folder, words):
    """journalctl -u UNIT -o cat [-n LINES]: messages, without the times of the log."""
    unit = Unit(folder, words[words.index("-u") + 1])
    lines = unit.log.read_text(errors="replace").splitlines() if unit.log.exists() else []
    if "-n" in words:
        lines = lines[-int(words[words.index("-n") + 1]) :]
    for line in lines:
        print(LOG_HEAD.sub("", line))
    return 0


def without_owner(words):
    """The arguments of `install` but for owner and group, which only root can give."""
    kept = list(words)
    for flag in ("-o", "-g"):
        if flag in kept:
            del kept[kept.index(flag) : kept.index(flag) + 2]
    return kept


def main():
    folder, name, words = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if name == "sudo":
        words = words[2:] if words[0] == "-u" else words
        os.execvp(words[0], words)
    if name == "install":
        os.execv("/usr/bin/install", ["install", *without_owner(words)])
    if name == "systemctl":
        return systemctl(folder, words)
    if name == "journalctl":
        return journalctl(folder, words)
    return 0  # Packages are installed here, and all files are one user's.


if __name__ == "__main__":
    sys.exit(main())
