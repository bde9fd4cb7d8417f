# SPDX-License-Identifier: Apache-2.0
"""A full disk, a quota that is used up, or another program that locks the database, pauses the run
with a message. Afterwards the run ends with the same model. The tests of a full disk mount a small
tmpfs, those of a quota a btrfs; without the right or the programs to do so they are skipped."""

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import time
import unittest

from federation import FederationTest, wait_until

RUN = "--new-run --model synthetic:100000 --min-clients 3 --deadline 0".split()

RUN_OF_ONE = "--new-run --min-clients 1 --rounds 1000 --codec ecuq:1+ef --downlink-codec ecuq:1+ef".split()


class DisturbedRun(FederationTest):
    rounds = 4

    def run_once(self, federation, disturb=None):
        server = federation.server(*RUN, "--rounds", self.rounds)
        clients = [federation.client(name) for name in self.names]
        if disturb:
            disturb(server, clients)
        for program in [server, *clients]:
            self.expect_exit(program)
        return federation.digests()


class FullDisk(DisturbedRun):
    def mount(self, folder, size):
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            self.skipTest(
                f"NO FULL DISK WAS TESTED, as a tmpfs can't be mounted: {done.stderr.strip()}"
            )
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)

    def fill(self, folder):
        """Fills the disk with a file and returns its path."""
        path = folder / "ballast"
        with path.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(65536)):
                    pass
            except OSError:
                pass
        return path

    def test_the_server_waits_for_space(self):
        wanted = self.run_once(self.make("undisturbed"))
        federation = self.template.copy(self.root / "full")
        self.addCleanup(federation.close)
        aside = federation.folder / "aside"
        federation.state.rename(aside)
        self.mount(federation.state, "24m")
        subprocess.run(["cp", "-a", f"{aside}/.", federation.state], check=True)

        def disturb(server, clients):
            wait_until("a round is done", lambda: federation.rounds_done() >= 1)
            clients[2].pause()  # The run must not end before the disk is full.
            ballast = self.fill(federation.state)
            clients[2].signal(signal.SIGCONT)
            server.wait_for("disk is full", 30)
            done = federation.rounds_done()
            time.sleep(3)
            self.assertTrue(server.running(), str(server))
            self.assertLessEqual(federation.rounds_done(), done + 1)
            ballast.unlink()

        self.assertEqual(self.run_once(federation, disturb), wanted)

    def test_the_server_waits_while_another_program_locks_the_database(self):
        wanted = self.run_once(self.make("unlocked"))
        federation = self.template.copy(self.root / "locked")
        self.addCleanup(federation.close)

        def disturb(server, clients):
            wait_until("a round is done", lambda: federation.rounds_done() >= 1)
            path = federation.state / "history.sqlite"
            with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                server.wait_for("another program holds the database", 30)
                self.assertTrue(server.running(), str(server))
                db.execute("ROLLBACK")

        self.assertEqual(self.run_once(federation, disturb), wanted)

    def test_a_client_waits_for_space(self):
        wanted = self.run_once(self.make("undisturbed"))
        federation = self.template.copy(self.root / "full-client")
        self.addCleanup(federation.close)
        aside = federation.folder / "aside"
        (federation.folder / "c").rename(aside)
        self.mount(federation.folder / "c", "3m")
        subprocess.run(["cp", "-a", f"{aside}/.", federation.folder / "c"], check=True)
        ballast = self.fill(federation.folder / "c")

        def disturb(_server, clients):
            clients[2].wait_for("No space left", 30)
            self.assertTrue(clients[2].running(), str(clients[2]))
            ballast.unlink()

        self.assertEqual(self.run_once(federation, disturb), wanted)


def run_as_root(what, *command):
    """Runs a command that makes or mounts a file system, or skips the test."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as missing:
        raise unittest.SkipTest(f"NO {what} WAS TESTED: {missing}") from missing
    if done.returncode != 0:
        raise unittest.SkipTest(f"NO {what} WAS TESTED: {done.stderr.strip()}")


class Quota(DisturbedRun):
    """A subvolume of btrfs that may not grow. As that copies on write, even a page of SQLite's shared
    memory that is written again needs room, which the kernel reports by a signal."""

    rounds = 300  # The run must not end before the quota is used up.

    def mount(self, folder):
        """Mounts a file system at a folder. Returns a folder in it with a quota."""
        image = folder.with_suffix(".image")
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(512 << 20)
        run_as_root("QUOTA", "mkfs.btrfs", "-q", image)
        run_as_root("QUOTA", "mount", "-o", "loop", image, folder)
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)
        run_as_root("QUOTA", "btrfs", "subvolume", "create", folder / "limited")
        run_as_root("QUOTA", "btrfs", "quota", "enable", folder)
        run_as_root("QUOTA", "btrfs", "qgroup", "limit", "40M", folder / "limited")
        return folder / "limited"

    def use_up(self, folder):
        """Fills the quota to the last page, however long what is freed meanwhile takes to count."""
        path = folder / "ballast"
        with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        return path

    def test_both_ends_wait_until_the_quota_has_room(self):
        wanted = self.run_once(self.make("without"))
        for which, name in (("server", "server"), ("client", "c")):
            federation = self.template.copy(self.root / which)
            self.addCleanup(federation.close)
            limited = self.mount(self.root / f"{which}-disk")
            moved = federation.folder / name
            subprocess.run(["cp", "-a", f"{moved}/.", limited / name], check=True)
            moved.rename(federation.folder / "aside")
            moved.symlink_to(limited / name)

            def disturb(server, clients):
                wait_until("a round is done", lambda: federation.rounds_done() >= 1)
                program = server if which == "server" else clients[2]
                until = time.monotonic() + 6
                while time.monotonic() < until:
                    ballast = self.use_up(limited)
                    time.sleep(0.2)
                self.assertTrue(program.running(), str(program))
                self.assertRegex(program.stderr(), "disk is full|Disk quota exceeded")
                # Not from the history, whose shared memory would be this process's as well.
                done = server.stderr().count(" updates, loss ")
                self.assertGreater(done, 0)
                time.sleep(2)
                self.assertLessEqual(server.stderr().count(" updates, loss "), done + 1)
                ballast.unlink()

            with self.subTest(which=which):
                self.assertEqual(self.run_once(federation, disturb), wanted)


class FailingDevice(FederationTest):
    """A device that can't be read any more: a file system in a file of which most is cut off."""

    names = ("a",)

    def mount(self, image, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(256 << 20)
        run_as_root("FAILING DEVICE", "mkfs.ext4", "-q", "-F", image)
        run_as_root("FAILING DEVICE", "mount", "-o", "loop", image, folder)
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)

    def fail(self, image, folder):
        """Lets the device fail. What the page cache still has would hide that."""
        subprocess.run(["sync", "-f", folder], check=True)
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.truncate(image, 2 << 20)

    def test_a_client_whose_device_fails_ends_with_an_error_that_names_the_file(self):
        federation = self.make()
        image, folder = federation.folder / "image", federation.folder / "a"
        aside = federation.folder / "aside"
        folder.rename(aside)
        self.mount(image, folder)
        subprocess.run(["cp", "-a", f"{aside}/.", folder], check=True)
        federation.server(*RUN_OF_ONE, "--model", "synthetic:4000000")
        client = federation.client("a")
        client.wait_for("round 2: update accepted")
        client.pause()
        self.fail(image, folder)
        client.signal(signal.SIGCONT)
        self.expect_exit(client, 1)
        self.assertRegex(client.stderr(), rf"{folder}/\S+: .*(the disk fails|Input/output error)")


class FileLimit(DisturbedRun):
    """RLIMIT_FSIZE: a file that would grow beyond it. Others may lower it and raise it again."""

    rounds = 40  # The run must not end before the limit is there.

    def limit(self, program, size):
        hard = resource.prlimit(program.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (size, hard))

    def test_both_ends_wait_until_the_limit_is_raised(self):
        wanted = self.run_once(self.make("without"))
        for which in ("server", "client"):
            federation = self.template.copy(self.root / which)
            self.addCleanup(federation.close)

            def disturb(server, clients):
                wait_until("a round is done", lambda: federation.rounds_done() >= 1)
                program = server if which == "server" else clients[2]
                # Less than the model's 400 kB, but enough for the program's own log.
                self.limit(program, 64 << 10)
                program.wait_for("(ulimit -f, or systemd's", 30)
                self.assertTrue(program.running(), str(program))
                self.limit(program, resource.RLIM_INFINITY)

            with self.subTest(which=which):
                self.assertEqual(self.run_once(federation, disturb), wanted)


if __name__ == "__main__":
    unittest.main()
