# SPDX-License-Identifier: Apache-2.0
"""The exit codes of all programs, as docs/guide/exit-codes.md lists them; and who gives up."""

import os
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
import unittest

from federation import BIN, FederationTest, SOURCE, free_port
from tunnels import listen

from proxy_test import readdress

RUN = ("--model", "synthetic:100", "--min-clients", 1, "--rounds", 1)


# The functions of NVIDIA's driver that fl-client calls.
DRIVER = """
#include <stdio.h>
int cuInit(unsigned flags) { return ERROR; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
int cuDeviceGetName(char *name, int bytes, int device) { snprintf(name, bytes, "Imagined GPU %d", device); return 0; }
int cuGetErrorName(int error, const char **name) { *name = "CUDA_ERROR_IMAGINED"; return 0; }
"""


def answer_plainly(door):
    """Answers whoever connects with something that is not TLS."""
    while True:
        try:
            connection, _ = door.accept()
        except OSError:
            return
        with connection:
            connection.recv(1024)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


class ExitCodes(FederationTest):
    names = ("a",)

    def check(self, code, *arguments):
        got, out, err = self.federation.command(*map(str, arguments))
        self.assertEqual(got, code, f"{arguments}: {out}{err}")
        return out + err

    def setUp(self):
        self.federation = self.make()

    def test_the_table(self):
        nowhere = self.federation.folder / "nowhere"
        state = self.federation.state
        rows = [
            (0, "fl-server", "--help"),
            (0, "fl-server", "--version"),
            (0, "fl-server", "--state", state, "clients"),
            (0, "fl-server", "codecs"),
            (1, "fl-server", "--state", nowhere, "history"),
            (1, "fl-server", "--state", state, "revoke", "nobody"),
            (2, "fl-server", "--rounds", "many"),
            (2, "fl-server", "--no-such-flag"),
            (2, "fl-server", "no-such-command"),
            (2, "fl-server", "--max-upload", "fast"),
            (2, "fl-server", "--quiet", "8-18=2mbit"),
            (0, "fl-client", "--help"),
            (0, "fl-client", "--version"),
            (1, "fl-client", "--state", nowhere),
            (1, "fl-client", "join", "no-token", "--state", nowhere),
            (1, "fl-client", "predict", "--model", nowhere, "--data", "csv:table.csv"),
            (2, "fl-client", "join"),
            (2, "fl-client", "predict", "--model", nowhere),
            (2, "fl-client", "predict", "--state", nowhere),
            (2, "fl-client", "--max-wait", "-1"),
            (2, "fl-client", "--max-retries", "0"),
            (2, "fl-client", "--max-download", "1"),
            (2, "fl-client", "--proxy", ""),
            (0, "fl-sim", "--help"),
            (0, "fl-sim", "--model", "synthetic:100", "--clients", 2, "--rounds", 1, "--state", nowhere / "sim"),
            (1, "fl-sim", "--model", "no-such-model", "--clients", 2, "--rounds", 1, "--state", nowhere / "sim2"),
            (2, "fl-sim", "--clients", "many"),
        ]
        for code, *arguments in rows:
            with self.subTest(arguments=arguments):
                self.check(code, *arguments)

    def test_a_wrong_proxy_ends_the_client_with_1(self):
        out = self.check(
            *(1, "fl-client", "--state", self.federation.folder / "a", "--proxy", "socks5://h:1")
        )
        self.assertIn("--proxy: Tributary speaks to HTTP proxies only", out)

    def test_programs_that_end_well_or_are_stopped_return_0(self):
        server = self.federation.server("--new-run", *RUN)
        client = self.federation.client("a")
        self.expect_exit(client, 0)
        self.expect_exit(server, 0)
        server = self.federation.server("--new-run", *RUN, "--min-clients", 2)
        client = self.federation.client("a", "--stay")
        client.wait_for("synthetic:100")
        for program in (client, server):
            program.signal(signal.SIGTERM)
            self.expect_exit(program, 0)

    def test_a_second_ctrl_c_ends_a_program_that_waits_for_its_peer(self):
        """Each is asked to stop while the other end is stopped, and so does not say goodbye."""
        for name in ("server", "client"):
            with self.subTest(name):
                server = self.federation.server("--new-run", *RUN, "--min-clients", 2)
                client = self.federation.client("a", "--stay")
                server.wait_for("a is here")
                asked, other = (server, client) if name == "server" else (client, server)
                other.pause()
                asked.signal(signal.SIGINT)
                asked.wait_for("stopping (Ctrl-C again quits immediately)")
                while asked.running():  # The first moments still belong to the first one.
                    asked.signal(signal.SIGINT)
                    time.sleep(0.05)
                self.expect_exit(asked, -signal.SIGINT)
                other.kill()

    def test_a_program_that_is_killed_returns_the_signal(self):
        server = self.federation.server("--new-run", *RUN)
        server.signal(signal.SIGKILL)
        self.expect_exit(server, -signal.SIGKILL)

    def test_a_client_gives_up_after_a_time(self):
        for flags, attempts in ((("--max-wait", 2), 2), (("--max-retries", 3), 4)):
            begin = time.monotonic()
            client = self.federation.client("a", *flags)  # No server runs.
            self.expect_exit(client, 3)
            last = client.stderr().splitlines()[-1]
            self.assertIn("gave up after", last)
            self.assertIn("Connection refused", last)
            self.assertGreaterEqual(int(last.split("gave up after ")[1].split()[0]), attempts)
            self.assertLess(time.monotonic() - begin, 20)

    def test_a_client_that_joins_gives_up_too(self):
        server = self.federation.server("--new-run", *RUN)
        token = self.federation.token("b")
        server.kill()
        client = self.federation.client("b", "--join", token, "--max-retries", 2)
        self.expect_exit(client, 3)
        self.assertIn("gave up after 3 attempts", client.stderr())

    def test_a_connection_starts_the_patience_anew(self):
        server = self.federation.server("--new-run", *RUN, "--min-clients", 2)
        client = self.federation.client("a", "--max-wait", 3, "--stay")
        client.wait_for("synthetic:100")
        time.sleep(4)  # Connected for longer than --max-wait.
        self.assertTrue(client.running())
        begin = time.monotonic()
        server.kill()
        self.expect_exit(client, 3)
        self.assertGreater(time.monotonic() - begin, 2.5)

    def test_the_document_lists_what_the_programs_return(self):
        text = (SOURCE / "docs/guide/exit-codes.md").read_text()
        # Each is in a test: 4 in replay_test.py.
        self.assertEqual(re.findall(r"(?m)^\| (\d+) \|", text), ["0", "1", "2", "3", "4"])


class Doctor(FederationTest):
    names = ("a",)

    def doctor(self, *arguments, code=0):
        got, out, err = self.federation.command(*map(str, arguments), "--json")
        self.assertEqual(got, code, out + err)
        import json

        return {line["subject"]: line for line in json.loads(out)["lines"]}

    def setUp(self):
        self.federation = self.make()
        self.client = ("fl-client", "doctor", "--state", self.federation.folder / "a")

    def check(self, lines, **verdicts):
        for subject, verdict in verdicts.items():
            line = lines[subject.replace("_", " ")]
            self.assertEqual(line["verdict"], verdict, line)

    def test_all_is_well_on_both_ends(self):
        flags = ("--state", self.federation.state, "--listen", f"127.0.0.1:{self.federation.port}")
        lines = self.doctor("fl-server", "doctor", *flags)
        self.check(lines, port="ok", history="ok", authority="ok", disk_sync="ok", disk_locks="ok")
        self.check(lines, open_files=lines["open files"]["verdict"], memory="ok")
        self.federation.server("--new-run", *RUN, "--stay")
        lines = self.doctor("fl-server", "doctor", *flags)
        self.assertIn("a server runs here", lines["port"]["text"])
        self.check(lines, port="ok", history="ok", address="warn")  # 127.0.0.1 is for tests only.
        lines = self.doctor(*self.client, "--data", "no-such:data", code=1)
        self.check(lines, identity="ok", certificate="ok", name="ok", proxy="ok")
        self.check(lines, port="ok", TLS="ok", server_certificate="ok", server="ok")
        self.check(lines, disk_space="ok", disk_sync="ok", disk_locks="ok", data="fail", GPU="ok")
        self.assertIn("s off the server's", lines["clock"]["text"])
        # Beside the client itself.
        client = self.federation.client("a", "--stay")
        client.wait_for("synthetic:100")
        self.check(self.doctor(*self.client), server="ok", disk_locks="ok", data="warn")

    def test_the_text_has_a_line_each_and_the_remedy_below(self):
        code, out, _ = self.federation.command("fl-client", "doctor", "--state", self.federation.folder / "a")
        self.assertEqual(code, 1)
        self.assertRegex(out, r"(?m)^ok    identity +'a' of 127\.0\.0\.1:")
        self.assertRegex(out, r"(?m)^fail  port +connecting to 127\.0\.0\.1:\d+: Connection refused\n +-> see")

    def test_a_client_without_identity_looks_at_its_tokens_server(self):
        self.federation.server("--new-run", *RUN, "--stay")
        token = self.federation.folder / "token"
        token.write_text(self.federation.token("b"))
        token.chmod(0o600)
        state = self.federation.folder / "b"
        lines = self.doctor("fl-client", "doctor", "--state", state, code=1)
        self.check(lines, identity="fail")
        lines = self.doctor("fl-client", "doctor", "--state", state, "--join-file", token)
        self.check(lines, identity="ok", server="ok")
        self.assertFalse(state.exists())
        self.federation.join("b")  # The token was not used up, nor was the name.

    def test_doctor_follows_no_link_that_others_have_made(self):
        shared, victim = self.root / "shared", self.root / "victim"
        kept = victim / "trainer" / "kept"
        kept.parent.mkdir(parents=True)
        kept.touch()
        shared.mkdir()
        # The shell becomes doctor, so the number of its process is known before.
        link = f"ln -s {victim} {shared}/tributary-doctor-$$; export TMPDIR={shared}"
        ask = f"exec {BIN}/fl-client doctor --state {shared}/new --trainer 'exit 1' --trainer-retries 1"
        done = subprocess.run(["sh", "-c", f"{link}; {ask}"], capture_output=True, text=True, timeout=60)
        self.assertRegex(done.stdout, r"(?m)^fail  trainer +the trainer ended")
        self.assertTrue(kept.exists())
        (left,) = shared.iterdir()  # Nothing but the link, which is not ours.
        self.assertTrue(left.is_symlink())

    def test_wrong_names_dead_proxies_and_trainers_are_found(self):
        readdress(self.federation, "a", "no-such-name.invalid:1")
        lines = self.doctor(*self.client, code=1)
        self.check(lines, name="fail", port="fail")
        self.assertNotIn("TLS", lines)  # It was not come to.
        lines = self.doctor(*self.client, "--proxy", f"127.0.0.1:{free_port()}", code=1)
        self.check(lines, proxy="ok", port="fail")
        self.assertIn("the proxy", lines["port"]["text"])
        lines = self.doctor(*self.client, "--proxy", "socks5://x:1", code=1)
        self.check(lines, proxy="fail")
        lines = self.doctor(*self.client, "--trainer", "false", code=1)
        self.check(lines, trainer="fail")
        self.assertNotIn("GPU", lines)  # The trainer decides by itself what it uses.

    def test_the_way_to_a_server_has_a_line_for_each_part(self):
        # Something that speaks no TLS, then the server of another federation.
        door = listen()
        self.addCleanup(door.close)
        threading.Thread(target=answer_plainly, args=(door,), daemon=True).start()
        readdress(self.federation, "a", f"127.0.0.1:{door.getsockname()[1]}")
        lines = self.doctor(*self.client, code=1)
        self.check(lines, port="ok", TLS="fail")
        self.assertNotIn("server certificate", lines)
        stranger = FederationTest.make(self, "stranger")
        shutil.rmtree(stranger.state)
        stranger.server("--new-run", *RUN, "--stay")
        readdress(self.federation, "a", f"127.0.0.1:{stranger.port}")
        lines = self.doctor(*self.client, code=1)
        self.check(lines, port="ok", TLS="ok", server_certificate="fail")
        self.assertIn("is not the federation's", lines["server certificate"]["text"])
        self.assertNotIn("server", lines)

    def test_the_gpu_is_what_driver_and_libtorch_say(self):
        lines = self.doctor(*self.client, "--device", "cuda", code=1)
        self.check(lines, GPU="fail")
        self.assertIn("--device is cuda", lines["GPU"]["text"])
        self.check(self.doctor(*self.client, "--device", "cpu", code=1), GPU="ok")
        for devices, error, verdict, text in (
            (2, 0, "warn", "Imagined GPU 0, Imagined GPU 1"),
            (0, 0, "ok", "none: the CPU trains"),
            (0, 999, "warn", "does not start: CUDA_ERROR_IMAGINED"),
        ):
            with self.subTest(devices=devices, error=error):
                os.environ["LD_LIBRARY_PATH"] = str(self.make_driver(devices, error))
                self.addCleanup(os.environ.pop, "LD_LIBRARY_PATH", None)
                lines = self.doctor(*self.client, code=1)
                self.check(lines, GPU=verdict)
                self.assertIn(text, lines["GPU"]["text"])

    def make_driver(self, devices, error):
        """A driver's library that has so many GPUs, or does not start."""
        folder = self.federation.folder / f"driver-{devices}-{error}"
        folder.mkdir()
        (folder / "driver.c").write_text(DRIVER)
        made = subprocess.run(
            ["cc", "-shared", "-fPIC", f"-DDEVICES={devices}", f"-DERROR={error}"]
            + ["-o", folder / "libcuda.so.1", folder / "driver.c"],
            capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual(made.returncode, 0, made.stderr)
        return folder

    def test_a_taken_port_and_a_damaged_history_are_found(self):
        door = listen()
        self.addCleanup(door.close)
        place = f"127.0.0.1:{door.getsockname()[1]}"
        flags = ("--state", self.federation.state, "--listen", place)
        self.check(self.doctor("fl-server", "doctor", *flags, code=1), port="fail", history="ok")
        history = self.federation.state / "history.sqlite"
        data = bytearray(history.read_bytes())
        data[4096 * 2 : 4096 * 4] = b"\xff" * 8192
        history.write_bytes(data)
        self.check(self.doctor("fl-server", "doctor", *flags, code=1), history="fail")

    def test_without_a_state_the_disk_where_it_will_be_is_looked_at(self):
        state = self.federation.folder / "new" / "deeper"
        lines = self.doctor("fl-server", "doctor", "--state", state, "--listen", "127.0.0.1:0")
        self.assertIn(f"are free at {self.federation.folder}", lines["disk space"]["text"])
        lines = self.doctor("fl-client", "doctor", "--state", state, code=1)  # It has no identity.
        self.assertIn(f"are free at {self.federation.folder}", lines["disk space"]["text"])
        self.assertFalse(state.parent.exists())

    @unittest.skipIf(os.geteuid() != 0, "only root can give a folder away")
    def test_a_state_of_another_user_is_named(self):
        for program, state in (("fl-server", self.federation.state), ("fl-client", self.federation.folder / "a")):
            os.chown(state, 12345, 12345)
            lines = self.doctor(program, "doctor", "--state", state, code=1)
            self.assertEqual(lines["state"]["verdict"], "fail")
            self.assertIn("belongs to the user number 12345, and this program runs as 'root'", lines["state"]["text"])

    def test_limits_are_told(self):
        flags = ("--max-upload", "20mbit", "--quiet", "08:00-18:00=2mbit")
        lines = self.doctor(*self.client, *flags, code=1)  # No server runs.
        self.assertIn("sends at most 20mbit", lines["limits"]["text"])
        self.assertIn("08:00-18:00=2mbit (here it is ", lines["limits"]["text"])
        lines = self.doctor("fl-server", "doctor", "--state", self.federation.state, *flags, "--listen", "127.0.0.1:0")
        self.assertIn("sends at most 20mbit", lines["limits"]["text"])

    def test_a_model_that_needs_more_memory_than_there_is(self):
        lines = self.doctor(
            *("fl-server", "doctor", "--state", self.federation.folder / "new"),
            *("--model", f"synthetic:{1 << 36}", "--advertise", "no-such-name.invalid"),
            code=1,
        )
        self.check(lines, memory="fail", address="fail", state="warn")

    def test_the_limits_of_the_process_are_its_machine(self):
        cores = os.sched_getaffinity(0)
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        self.addCleanup(os.sched_setaffinity, 0, cores)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_DATA, limits)
        os.sched_setaffinity(0, {min(cores)})
        resource.setrlimit(resource.RLIMIT_DATA, (3_000_000_000, limits[1]))
        text = r"^1 core .*, 3 GB of memory \(the limit is ulimit -d\)$"
        model = ("--model", "synthetic:1000000000")
        server = ("fl-server", "doctor", "--state", self.federation.folder / "new", *model)
        for lines in (self.doctor(*self.client, code=1), self.doctor(*server, code=1)):
            self.assertRegex(lines["machine"]["text"], text)
        self.assertRegex(lines["memory"]["text"], r"^[0-3](\.\d+)? GB are available; .* needs about 16")


if __name__ == "__main__":
    unittest.main()
