# SPDX-License-Identifier: Apache-2.0
"""The programs as services: what they tell a service manager, what SIGHUP changes, and the probes.

The manager is a socket of this test. The units in deploy/systemd/ are read too."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import federation
from federation import BIN, SOURCE, FederationTest, wait_until

RUN = "--new-run --model synthetic:1000 --min-clients 1 --rounds 100000 --deadline 0".split()


class Manager:
    """A service manager that writes down what it is told."""

    def __init__(self, name):
        self.name, self.told = name, []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self.socket.setblocking(False)

    def close(self):
        self.socket.close()

    def heard(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                self.told += self.socket.recv(4096).decode().splitlines()
        return self.told

    @contextlib.contextmanager
    def in_environment(self, watchdog_s=4):
        changed = {"NOTIFY_SOCKET": self.name, "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}
        os.environ.update(changed)
        try:
            yield
        finally:
            for name in changed:
                del os.environ[name]


def get(place, path, token=""):
    """Returns the status and the body of a page of the admin door."""
    connection = http.client.HTTPConnection(place, timeout=10)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Services(FederationTest):
    names = ("a",)

    def manager(self, name):
        manager = Manager(name)
        self.addCleanup(manager.close)
        return manager

    def short_path(self):
        """A folder for a socket: a path in the folder of a test may be too long."""
        folder = tempfile.mkdtemp(prefix="fl-")
        self.addCleanup(shutil.rmtree, folder)
        return f"{folder}/notify"

    def hang_up(self, program, text):
        """Sends SIGHUP and returns the next line of the log that has `text`."""
        seen = len(program.stderr())
        program.signal(signal.SIGHUP)
        wait_until(f"a line '{text}'", lambda: text in program.stderr()[seen:] or not program.running())
        lines = [line for line in program.stderr()[seen:].splitlines() if text in line]
        self.assertTrue(lines, str(program))
        return lines[0]

    def test_a_server_tells_its_manager_how_it_is(self):
        fleet = self.make()
        for name in (self.short_path(), f"@tributary-{os.getpid()}"):
            with self.subTest(name=name):
                manager = self.manager(name)
                with manager.in_environment():
                    server = fleet.server(*RUN)
                wait_until("READY=1", lambda: "READY=1" in manager.heard())
                wait_until("life", lambda: manager.heard().count("WATCHDOG=1") >= 2)
                wait_until(
                    "a status",
                    lambda: any(re.match(r"STATUS=round \d+/100000 · ", x) for x in manager.heard()),
                )
                self.assertNotIn("STOPPING=1", manager.heard())
                server.signal(signal.SIGTERM)
                self.expect_exit(server)
                self.assertIn("STOPPING=1", manager.heard())

    def test_a_stopped_process_does_not_feed_the_watchdog(self):
        fleet = self.make()
        manager = self.manager(self.short_path())
        with manager.in_environment(watchdog_s=0.4):
            server = fleet.server(*RUN)
        wait_until("life", lambda: manager.heard().count("WATCHDOG=1") >= 3)
        server.pause()
        time.sleep(0.2)
        manager.heard()
        manager.told.clear()
        time.sleep(1)
        self.assertEqual(manager.heard(), [])
        server.signal(signal.SIGCONT)
        wait_until("life", lambda: "WATCHDOG=1" in manager.heard())

    def test_a_client_tells_its_manager_and_its_trainer_can_not(self):
        fleet = self.make()
        fleet.server(*RUN)
        manager = self.manager(self.short_path())
        with manager.in_environment():
            client = fleet.client("a")
        wait_until("READY=1", lambda: "READY=1" in manager.heard())
        wait_until("life", lambda: manager.heard().count("WATCHDOG=1") >= 2)
        self.assertIn(f"STATUS=client 'a' of 127.0.0.1:{fleet.port}", manager.heard())
        client.signal(signal.SIGTERM)
        self.expect_exit(client)
        self.assertIn("STOPPING=1", manager.heard())

        told = fleet.folder / "environment"
        with manager.in_environment():
            client = fleet.client("a", "--trainer", f"sh -c 'env > {told}; exit 1'")
        wait_until("the trainer has started", lambda: told.exists() and told.read_text())
        self.assertNotIn("NOTIFY_SOCKET", told.read_text())
        self.assertNotIn("WATCHDOG", told.read_text())
        client.kill()

    def test_a_client_that_can_not_join_yet_says_why(self):
        fleet = self.make()
        server = fleet.server(*RUN)
        token = fleet.token("late")
        server.kill()
        manager = self.manager(self.short_path())
        with manager.in_environment():
            client = fleet.client("late", "--join", token)
        why = f"STATUS=waiting for the server: connecting to 127.0.0.1:{fleet.port}: Connection refused"
        wait_until("a status", lambda: why in manager.heard())
        self.assertNotIn("READY=1", manager.heard())
        fleet.server()
        wait_until("READY=1", lambda: "READY=1" in manager.heard())
        client.kill()

    def test_sighup_changes_what_a_server_can_change_and_names_the_rest(self):
        fleet = self.make()
        token, config = fleet.folder / "token", fleet.folder / "server.toml"
        token.write_text("first-token-of-the-admin\n")
        token.chmod(0o600)
        flags = f'admin-token-file = "{token}"\nadmin = "127.0.0.1:0"\n'
        config.write_text(flags)
        server = fleet.start(
            "server",
            [BIN / "fl-server", "--config", config, "--state", fleet.state, *RUN]
            + ["--listen", f"127.0.0.1:{fleet.port}", "--ready-file", fleet.folder / "ready.json"]
            + ["--codec", "none"],
        )
        fleet.await_ready(server)
        place = json.loads((fleet.folder / "ready.json").read_text())["admin"]
        self.assertEqual(get(place, "/healthz", "first-token-of-the-admin")[0], 200)
        self.assertIn("nothing changes now", self.hang_up(server, "read the flags again"))

        token.write_text("second-token-of-the-admin\n")
        said = self.hang_up(server, "read the flags again")
        self.assertIn("changed: the token of the admin pages", said)
        self.assertEqual(get(place, "/healthz", "first-token-of-the-admin")[0], 401)
        self.assertEqual(get(place, "/healthz", "second-token-of-the-admin")[0], 200)

        config.write_text(flags + 'max-upload = "20mbit"\nquiet = "08:00-18:00=2mbit"\n')
        said = self.hang_up(server, "read the flags again")
        self.assertIn("changed: --max-upload, --quiet", said)
        self.assertIn("traffic: sends at most 20mbit, receives without a limit", server.stderr())
        config.write_text(flags)
        self.assertIn("changed: --max-upload, --quiet", self.hang_up(server, "read the flags again"))
        self.assertIn("traffic: without limits", server.stderr())

        config.write_text(flags.replace(":0", ":1") + "verbose = true\nstay = true\nlr = 0.5\n")
        said = self.hang_up(server, "read the flags again")
        self.assertIn("changed: the log has more lines (--verbose)", said)
        self.assertIn("only a restart changes --admin, --lr, --stay", said)
        config.write_text(flags)
        self.assertIn("fewer lines", self.hang_up(server, "read the flags again"))

        for wrong, why in (
            (flags + "rounds = many\n", f"{config}:3"),
            (flags + "roundz = 3\n", "there is no flag --roundz"),
            (flags.replace(str(token), str(fleet.folder / "gone")), "--admin-token-file"),
        ):
            config.write_text("verbose = true\n" + wrong)
            said = self.hang_up(server, "nothing has changed")
            self.assertIn(why if ":3" not in why else f"{config}:4", said)
        self.assertEqual(get(place, "/healthz", "second-token-of-the-admin")[0], 200)
        server.signal(signal.SIGTERM)
        self.expect_exit(server)

    def test_sighup_changes_the_log_of_a_client(self):
        fleet = self.make()
        fleet.server(*RUN)
        config = fleet.folder / "client.toml"
        config.write_text("stay = true\n")
        client = fleet.client("a", "--config", config)
        client.wait_for("asked to train")
        config.write_text('stay = true\nmax-download = "20mbit"\n')
        self.assertIn("changed: --max-download", self.hang_up(client, "read the flags again"))
        self.assertIn("traffic: sends without a limit, receives at most 20mbit a second", client.stderr())
        config.write_text('verbose = true\nstay = true\nthreads = 2\nmax-download = "20mbit"\n')
        said = self.hang_up(client, "read the flags again")
        self.assertIn("the log has more lines", said)
        self.assertIn("only a restart changes --threads", said)
        config.write_text("nonsense\n")
        self.assertIn(str(config), self.hang_up(client, "nothing has changed"))
        client.signal(signal.SIGTERM)
        self.expect_exit(client)

    def test_under_nohup_sighup_is_still_ignored(self):
        fleet = self.make()
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            server = fleet.server(*RUN)
        finally:
            signal.signal(signal.SIGHUP, before)
        server.signal(signal.SIGHUP)
        time.sleep(0.5)
        self.assertTrue(server.running(), str(server))
        self.assertNotIn("read the flags", server.stderr())

    def test_the_journal_gets_priorities_and_no_times(self):
        fleet = self.make()
        log = fleet.folder / "journal"
        with log.open("wb") as file:
            status = os.fstat(file.fileno())
            environment = os.environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
            flags = ["--state", fleet.state, "--listen", f"127.0.0.1:{fleet.port}", "--admin", "off"]
            server = subprocess.Popen(
                [BIN / "fl-server", *flags, *RUN, "--codec", "none"], stderr=file,
                stdout=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
            wait_until("it listens", lambda: "<6>listening on " in log.read_text())
            server.terminate()
            self.assertEqual(server.wait(federation.WAIT_MAX_S), 0, log.read_text())
            failed = subprocess.run(
                [BIN / "fl-server", *flags, "--listen", "nonsense"], stderr=file, env=environment
            )
        self.assertEqual(failed.returncode, 1)
        self.assertIn("<3>fl-server: --listen", log.read_text())

    def test_the_probes_tell_alive_from_ready(self):
        fleet = self.make()
        disk = fleet.folder / "disk"
        disk.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk], capture_output=True, text=True
        )
        if mounted.returncode == 0:
            self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        token = fleet.folder / "token"
        token.write_text("a-token-of-the-admin\n")
        server = fleet.server(
            *RUN, "--state", disk / "state", "--admin", "127.0.0.1:0", "--admin-token-file", token,
            "--codec", "none",
        )  # fmt: skip
        place = server.ready["admin"]
        # Without the token: a kubelet has none.
        wait_until("ready", lambda: get(place, "/readyz") == (200, '{"status":"ok"}\n'))
        self.assertEqual(get(place, "/livez")[0], 200)
        self.assertEqual(get(place, "/healthz")[0], 401)
        if mounted.returncode == 0:
            ballast = disk / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(65536))
            wait_until("not ready", lambda: get(place, "/readyz")[0] == 503)
            self.assertIn("MiB free", get(place, "/readyz")[1])
            self.assertEqual(get(place, "/livez")[0], 200)
            ballast.unlink()
            wait_until("ready again", lambda: get(place, "/readyz")[0] == 200)
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        if mounted.returncode != 0:
            self.skipTest(f"NO FULL DISK WAS TESTED, as a tmpfs can't be mounted: {mounted.stderr}")


class Units(unittest.TestCase):
    """deploy/systemd/ beside the limits of the programs."""

    UNITS = SOURCE / "deploy" / "systemd"

    def value(self, unit, name):
        return re.search(rf"^{name}=(.*)$", (self.UNITS / unit).read_text(), re.MULTILINE)[1]

    def limit_s(self, name):
        text = (SOURCE / "shared" / "base" / "limits.hpp").read_text()
        return int(re.search(rf"{name} = (\d+)s;", text)[1])

    def test_units_wait_longer_than_a_clean_end_and_a_silence_may_take(self):
        for unit in ("fl-server.service", "fl-client@.service"):
            self.assertEqual(self.value(unit, "TimeoutStopSec"), str(self.limit_s("stop_max") + 30))
            self.assertGreaterEqual(
                int(self.value(unit, "WatchdogSec")), 2 * self.limit_s("pulse_silence_max")
            )
            self.assertEqual(self.value(unit, "Type"), "notify")

    def test_units_are_hardened(self):
        if subprocess.run(["sh", "-c", "command -v systemd-analyze"], capture_output=True).returncode:
            self.skipTest("NO UNIT WAS CHECKED: systemd-analyze is missing")
        for unit in ("fl-server.service", "fl-client@.service"):
            said = subprocess.run(
                ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager"]
                + [self.UNITS / unit],
                capture_output=True, text=True,
            )  # fmt: skip
            self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
            self.assertRegex(said.stdout, r"Overall exposure level for \S+: [01]\.\d|: 2\.0")


if __name__ == "__main__":
    unittest.main()
