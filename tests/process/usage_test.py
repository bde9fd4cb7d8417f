# SPDX-License-Identifier: Apache-2.0
"""Mistakes on the command line and when a client joins or connects: every refusal names its
cause."""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
import unittest
from pathlib import Path

from federation import BIN, Federation, FederationTest, forge, last_of_each, wait_until

SERVER_MISTAKES = [
    ("--rounds", "0"),
    ("--rounds", "many"),
    ("--min-clients", "0"),
    ("--fraction", "0"),
    ("--fraction", "1.5"),
    ("--over-select", "0.5"),
    ("--deadline", "-1"),
    ("--deadline", "0.0000001"),
    ("--local-epochs", "0"),
    ("--local-steps-schedule", "warmup:rounds=0"),
    ("--local-steps-schedule", "adaptive"),
    ("--local-seconds", "-1"),
    ("--local-seconds", "1e7"),
    ("--local-seconds", "600"),
    ("--batch-size", "0"),
    ("--accumulate", "0"),
    ("--lr", "0"),
    ("--momentum", "1"),
    ("--weight-decay", "-1"),
    ("--proximal-mu", "-1"),
    ("--clip-norm", "-1"),
    ("--strategy", "fedsgd"),
    ("--strategy", "fedavg:personal=conv9.*"),
    ("--strategy", "fedprox:mu=-1"),
    ("--strategy", "ditto:personal=fc3.*"),
    ("--optimizer", "lamb"),
    ("--lr-schedule", "cosine:floor=2"),
    ("--patience", "-1"),
    ("--sampling", "random"),
    ("--mode", "async:buffer=0"),
    ("--target-accuracy", "86"),
    ("--target-accuracy", "0.8", "--target", "f1>=0.8"),
    ("--target", "accuracy>=86"),
    ("--target", "accuracy<=0.86"),
    ("--target", "perplexity>=20"),
    ("--target", "0.86"),
    ("--metric", "x" * 65),
    ("--clients-per-round", "1"),
    ("--codec", "zip"),
    ("--downlink-codec", "qsgd"),
    ("--downlink-codec", "topk:0.1+dgc:0.9"),
    ("--model", "nonesuch"),
    ("--model", "synthetic:0"),
    ("--seed", "-1"),
    ("--seed", "18446744073709551616"),
    ("--seed", "010"),
    ("--lr", "nan"),
    ("--lr", "1e999"),
    ("--fraction", "0x1p-1"),
    ("--keep-checkpoints", "-1"),
    ("--keep-best", "perhaps"),
    ("--keep-updates", "0"),
    ("--listen", "nowhere"),
    ("--listen", "bad host:0"),
    ("--admin", "nowhere"),
    ("--advertise", "bad host"),
    ("--initial-weights", "/nonesuch"),
    ("--config", "/nonesuch"),
    ("--no-such-flag", "1"),
    ("--momentum", "0.5", "--optimizer", "adam"),
]
CLIENT_MISTAKES = [
    ("--shard", "0/3"),
    ("--shard", "4/3"),
    ("--shard", "half"),
    ("--partition", "dirichlet:0.5"),
    ("--partition-seed", "-1"),
    ("--partition", "pizza", "--shard", "1/3"),
    ("--holdout", "2"),
    ("--data-memory", "0"),
    ("--data-memory", "-1"),
    ("--data-memory", "4GB"),
    ("--data-memory", "99999999999GiB"),
    ("--device", "abacus"),
    ("--precision", "fp8"),
    ("--threads", "-1"),
    ("--threads", "010"),
    ("--holdout", "nan"),
    ("--max-wait", "1e9999"),
    ("--hogwild", "0"),
    ("--config", "/nonesuch"),
    ("--no-such-flag", "1"),
]


class Flags(FederationTest):
    names = ("a",)

    def test_every_wrong_flag_is_named(self):
        federation = self.make()
        mistakes = [("fl-server", *mistake) for mistake in SERVER_MISTAKES]
        mistakes += [("fl-client", *mistake) for mistake in CLIENT_MISTAKES]
        for number, (program, flag, *rest) in enumerate(mistakes):
            with self.subTest(program=program, flag=flag, rest=rest):
                flags = last_of_each(["--admin", "off", "--listen", "127.0.0.1:0", flag, *rest])
                if program == "fl-client":
                    flags = [flag, *rest]
                state = federation.folder / f"unused-{number}"
                code, _, err = federation.command(program, "--state", state, *flags)
                self.assertIn(code, (1, 2), err)
                self.assertIn(flag, err)
                if program == "fl-client":
                    self.assertEqual(code, 2, err)

    def test_what_is_nearly_a_flag_or_a_command_is_suggested(self):
        federation = self.make()
        for program, words, meant in (
            ("fl-server", ["--roundz", "4"], "--rounds"),
            ("fl-server", ["--roundz=4"], "--rounds"),
            ("fl-server", ["enrol", "--name", "x"], "enroll"),
            ("fl-server", ["enroll", "--name", "x", "--rol", "trainer"], "--role"),
            ("fl-server", ["histroy"], "history"),
            ("fl-client", ["--jion-file", "x"], "--join-file"),
            ("fl-client", ["--evaluate-onyl"], "--evaluate-only"),
            ("fl-server", ["--no-such-flag"], None),
            ("fl-server", ["-" * 100], None),
            ("fl-server", ["serve"], None),
        ):
            with self.subTest(words=words):
                code, _, err = federation.command(program, "--state", federation.folder / "unused", *words)
                self.assertEqual(code, 2, err)
                if meant:
                    self.assertIn(f"; did you mean {meant}?", err)
                else:
                    self.assertNotIn("did you mean", err)

    def test_what_is_nearly_a_name_in_a_value_is_suggested(self):
        federation = self.make()
        for program, words, meant in (
            ("fl-server", ["--model", "lenett"], "lenet"),
            ("fl-server", ["--model", "trasnformer:layers=2"], "transformer"),
            ("fl-server", ["--codec", "ecuk:2+ef"], "ecuq"),
            ("fl-server", ["--strategy", "fedavgg"], "fedavg"),
            ("fl-server", ["--optimizer", "adamx"], "adam"),
            ("fl-server", ["--sampling", "uniformm"], "uniform"),
            ("fl-server", ["--aggregate", "meddian"], "median"),
            ("fl-server", ["enroll", "--name", "x", "--role", "trianer"], "trainer"),
            ("fl-sim", ["--model", "logistic", "--partition", "labls:2"], "labels"),
            ("fl-sim", ["--malicious", "1", "--attack", "sign-flipp"], "sign-flip"),
            ("fl-server", ["--model", "bert"], None),
        ):
            with self.subTest(words=words):
                code, _, err = federation.command(program, "--state", federation.folder / "unused", *words)
                self.assertIn(code, (1, 2), err)
                if meant:
                    self.assertIn(f"; did you mean {meant}?", err)
                else:
                    self.assertNotIn("did you mean", err)

    def test_an_impossible_new_run_does_not_end_the_run_before(self):
        federation = self.make()  # The run is not over.
        for flags, word in (
            (["--strategy", "scaffold", "--mode", "async:compensate=0.04"], "compensate="),
            (["--model", "nonesuch"], "nonesuch"),
            (["--rounds", "0"], "--rounds"),
        ):
            flags = ["--admin", "off", "--listen", "127.0.0.1:0", "--new-run", *flags]
            code, _, err = federation.command("fl-server", "--state", federation.state, *flags)
            self.assertEqual(code, 1, err)
            self.assertIn(word, err)
            self.assertEqual(federation.query("SELECT state FROM run"), [("waiting",)])

    def test_with_log_json_the_error_that_ends_a_program_is_json(self):
        federation = self.make()
        client = federation.client("nobody", "--log-json")
        self.expect_exit(client, 1)
        (line,) = client.stderr().splitlines()
        self.assertEqual(json.loads(line)["level"], "error")
        self.assertIn("holds no identity", json.loads(line)["message"])

    def test_weights_that_no_run_can_begin_from_are_refused(self):
        federation = self.make()
        weights = federation.folder / "weights"
        header = json.dumps({"w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
        for content, words in (
            (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + bytes(99), "PyTorch"),
            (len(header).to_bytes(8, "little") + header, "no tensor has an element"),
        ):
            weights.write_bytes(content)
            flags = ["--new-run", "--model", "custom:net", "--initial-weights", weights]
            server = federation.server(*flags, ready=False)
            self.expect_exit(server, 1)
            self.assertIn(words, server.stderr())
        self.assertEqual(federation.query("SELECT count(*) FROM run"), [(1,)])

    def test_two_flags_for_one_thing_are_refused(self):
        federation = self.make()
        flags = ["--new-run", "--model", "synthetic:1", "--clients-per-round", 3, "--fraction", 0.5]
        server = federation.server(*flags, ready=False)
        self.expect_exit(server, 1)
        self.assertIn("--fraction is 0.5, and --clients-per-round 3", server.stderr())

    def test_a_config_file_is_read_and_its_mistakes_are_named(self):
        federation = self.make()
        config = federation.folder / "server.toml"
        config.write_text('model = "synthetic:7"  # TOML\nrounds = 1_000\nnew-run = true\n')
        server = federation.server("--config", config)
        stored = json.loads(
            federation.query("SELECT config_json FROM run ORDER BY id DESC LIMIT 1")[0][0]
        )
        self.assertEqual((stored["model"], stored["rounds"]), ("synthetic:7", 1000))
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        mistakes = {
            "roundz = 4": "there is no flag --roundz; did you mean --rounds?",
            "rounds = 3 4": "expected",
            "rounds = 3\nrounds = 4": "rounds",
            "[rounds]\nmany = 3": "no tables",
            "rounds = [3]": "rounds must be a string, a number",
            "rounds = -1": "'-1' is not a whole number from 0 to 4294967295",
            'lr = "fast"': "fast",
            "rounds: 3": "it looks like YAML, and this file is TOML: `flag = value`",
            '{"rounds": 3}': "it looks like JSON, and this file is TOML: `flag = value`",
        }
        for text, words in mistakes.items():
            config.write_text("# A mistake.\n" + text + "\n")
            wrong = federation.server("--config", config, ready=False)
            self.assertGreater(wrong.wait(), 0)
            self.assertIn(words, wrong.stderr())
            self.assertRegex(wrong.stderr(), r"server\.toml:[23]: ")
        # The command line overrides the file, so the error is about the command line.
        config.write_text("rounds = 3\n")
        wrong = federation.server("--config", config, "--rounds", "-1", ready=False)
        self.assertGreater(wrong.wait(), 0)
        self.assertNotIn("server.toml", wrong.stderr())

    def test_the_version_names_the_commit(self):
        federation = self.make()
        versions = set()
        for program in "fl-server", "fl-client", "fl-sim":
            code, out, _ = federation.command(program, "--version")
            self.assertEqual(code, 0)
            match = re.fullmatch(rf"{program} (\d+\.\d+\.\d+(?:-dev)?.*), protocol \d+\n", out)
            self.assertTrue(match, out)
            versions.add(match[1])
        (version,) = versions
        if (Path(os.environ["FL_SOURCE"]) / ".git").exists():
            self.assertRegex(version, r" \([0-9a-f]{7,}\+?\)\Z")

    def test_an_empty_state_flag_is_refused(self):
        federation = self.make()
        for program in "fl-server", "fl-client", "fl-sim":
            code, _, err = federation.command(program, "--state", "")
            self.assertEqual(code, 2)
            self.assertIn("--state: the value is empty", err)

    def test_a_wrong_data_set_shows_without_a_server(self):
        federation = self.make()
        client = federation.client("a", "--data", "idx:/nonesuch")
        self.expect_exit(client, 1, 10)
        self.assertIn("/nonesuch", client.stderr())
        client = federation.client("a", "--model", "resnet")
        self.expect_exit(client, 1, 10)
        self.assertIn("resnet", client.stderr())

    def test_a_history_that_may_not_be_read_is_not_one_that_is_missing(self):
        if os.geteuid() == 0 and not shutil.which("setpriv"):
            self.skipTest("root may read everything")
        federation = self.make()
        federation.server("--new-run", "--model", "synthetic:9")
        command = [BIN / "fl-server", "--state", federation.state, "history"]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
        else:
            federation.state.chmod(0)
            self.addCleanup(federation.state.chmod, 0o700)
        seen = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(seen.returncode, 1)
        self.assertIn("Permission denied", seen.stderr)

    def test_the_history_of_a_run_that_is_not_there(self):
        federation = self.make()
        code, _, err = federation.server_command("history", "--run", "")
        self.assertEqual(code, 2)
        self.assertIn("--run", err)
        for run in (0, 99, -1, "0123456789abcdef"):
            code, out, err = federation.server_command("history", f"--run={run}")
            self.assertEqual((code, out), (1, ""))
            self.assertIn(f"--run: there is no run {run}", err)

    def test_commands_without_a_history_say_so(self):
        federation = Federation(self.root / "empty")
        for command in (["history"], ["clients"], ["enroll", "--name", "x"], ["revoke", "x"]):
            code, out, err = federation.server_command(*command)
            self.assertEqual((code, out), (1, ""))
            self.assertIn("no history", err)


class Places(FederationTest):
    def test_a_taken_port_is_named(self):
        federation = self.make()
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            for flag in ("--listen", "--admin"):
                server = federation.server(
                    "--new-run", "--model", "synthetic:9", flag, f"127.0.0.1:{port}", ready=False
                )
                self.expect_exit(server, 1)
                self.assertIn(f"127.0.0.1:{port}: the port is taken", server.stderr())

    def test_a_state_that_others_may_change_is_refused(self):
        federation = self.make()
        federation.state.chmod(0o777)
        flags = ("--new-run", "--model", "synthetic:9")
        server = federation.server(*flags, ready=False)
        self.expect_exit(server, 1)
        self.assertIn(f"chmod 700 {federation.state}", server.stderr())
        code, _, err = federation.server_command("enroll", "--name", "d")
        self.assertEqual(code, 1)
        self.assertIn(f"chmod 700 {federation.state}", err)
        state = federation.folder / "a"
        state.chmod(0o755)
        client = federation.client("a")
        self.expect_exit(client, 1)
        self.assertIn(f"chmod 700 {state}", client.stderr())

    def test_a_state_in_proc_is_refused_with_what_it_is(self):
        federation = self.make()
        for program, flags in (
            ("fl-server", ("--new-run", "--model", "synthetic:9")),
            ("fl-client", ("--join", "x")),
            ("fl-sim", ("--model", "synthetic:9")),
        ):
            code, _, err = federation.command(program, *flags, "--state", "/proc/self/new")
            self.assertEqual(code, 1, err)
            self.assertIn("/proc/self/new is no place for files", err)

    def test_the_files_of_a_state_are_private(self):
        federation = self.make()
        federation.server("--new-run", "--model", "synthetic:9", "--min-clients", 3)
        for folder in (federation.state, federation.folder / "a"):
            for path in (folder, *folder.rglob("*")):
                self.assertEqual(path.stat().st_mode & 0o077, 0, path)

    def test_a_token_needs_no_command_line(self):
        federation = self.make()
        federation.server("--new-run", "--model", "synthetic:9", "--min-clients", 4)
        secret = federation.folder / "token"

        def join(*flags, text=""):
            command = [BIN / "fl-client", *flags, "--state", federation.folder / "d"]
            return subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)

        missing = join("join", "--join-file", secret)
        self.assertEqual(missing.returncode, 1)
        self.assertIn(f"--join-file {secret}", missing.stderr)
        self.assertEqual(join("join").returncode, 2)
        self.assertIn("no join token", join("join", "-").stderr)
        secret.write_text(federation.token("d") + "\n")
        secret.chmod(0o644)
        joined = join("join", "--join-file", secret)
        self.assertEqual(joined.returncode, 0, joined.stderr)
        self.assertIn("joined", joined.stderr)
        self.assertIn(f"chmod 600 {secret}", joined.stderr)
        joined = join("join", "-", text=federation.token("d") + "\n")
        self.assertEqual(joined.returncode, 0, joined.stderr)
        # A service whose command line names the file goes on when the file is gone.
        secret.unlink()
        client = federation.client("d", "--join-file", secret)
        client.wait_for("has joined before")
        client.wait_for("client 'd'")

    def test_a_state_has_one_user(self):
        federation = self.make()
        federation.server("--new-run", "--model", "synthetic:9", "--min-clients", 3)
        second = Federation(self.root / "second")
        second.state = federation.state
        self.addCleanup(second.close)
        server = second.server(ready=False)
        self.expect_exit(server, 1)
        self.assertIn("another process uses", server.stderr())

        first = federation.client("a")
        first.wait_for("client 'a'")
        again = federation.client("a")
        self.expect_exit(again, 1)
        self.assertIn("another process uses", again.stderr())

    def test_no_file_takes_the_place_of_a_closed_stream(self):
        federation = self.make()
        server = federation.server("--new-run", "--model", "synthetic:9", "--min-clients", 3)
        arguments = [BIN / "fl-client", "--state", federation.folder / "a", "--threads", "1"]
        closed = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *arguments]
        client = federation.start("closed", closed)
        server.wait_for("a is here")
        for number in range(3):
            self.assertEqual(os.readlink(f"/proc/{client.pid}/fd/{number}"), "/dev/null")
        client.signal(signal.SIGTERM)
        self.expect_exit(client)

    def test_a_client_without_identity_is_told_to_join(self):
        federation = self.make()
        client = federation.client("nobody")
        self.expect_exit(client, 1)
        self.assertIn("holds no identity: join first", client.stderr())

    def test_a_client_that_insists_on_another_model_is_refused(self):
        federation = self.make()
        federation.server("--new-run", "--model", "synthetic:9", "--min-clients", 3)
        client = federation.client("a", "--model", "synthetic:10")
        self.expect_exit(client, 1)
        self.assertIn("the client trains 'synthetic:10', this run trains 'synthetic:9'", client.stderr())

    @unittest.skipUnless((BIN / "libfl-torch.so").exists(), "built without libtorch")
    def test_a_client_without_its_library_says_which_and_where(self):
        federation = self.make()
        federation.server("--new-run", "--model", "logistic")
        alone = shutil.copy(BIN / "fl-client", federation.folder)
        state = federation.folder / "a"
        library = federation.folder / "libfl-torch.so"

        def refusal():
            client = federation.start("alone", [alone, "--state", state, "--data", "fashion-mnist"])
            self.expect_exit(client, 1)
            self.assertIn(str(library), client.stderr())
            return client.stderr()

        self.assertRegex(refusal(), r"install tributary-torch\. .* pip install torch==\d+\.\d+\.\d+\. ")
        source = 'struct { const char* version; void* make; } fl_torch_entry = {"0.0.9", 0};'
        compiler = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
        subprocess.run(compiler, input=source, text=True, check=True)
        self.assertRegex(refusal(), "comes from another build than this program: .*, got 0.0.9")


class Tokens(FederationTest):
    def setUp(self):
        self.federation = self.make()
        self.server = self.federation.server(
            "--new-run", "--model", "synthetic:9", "--min-clients", 3
        )

    def refused(self, token, reason):
        code, _, err = self.federation.command(
            "fl-client", "join", token, "--state", self.federation.folder / "new"
        )
        self.assertEqual(code, 1, err)
        self.assertIn(reason, err)
        self.assertFalse((self.federation.folder / "new" / "identity" / "cert.pem").exists())

    def test_enroll_prints_the_token_alone(self):
        code, out, _ = self.federation.server_command("enroll", "--name", "d")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"\Aflj1\.[A-Za-z0-9_-]+\n\Z")
        code, _, err = self.federation.command(
            "fl-client", "join", out.strip(), "--state", self.federation.folder / "d"
        )
        self.assertEqual(code, 0, err)
        wait_until(
            "d is enrolled",
            lambda: self.federation.query("SELECT 1 FROM client WHERE name = 'd'"),
            5,
        )

    def test_a_token_in_a_file_is_private_or_comes_with_a_warning(self):
        path = self.federation.folder / "e.token"
        code, out, err = self.federation.server_command("enroll", "--name", "e", "--output", path)
        self.assertEqual((code, out, err), (0, "", ""))
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertRegex(path.read_text(), r"\Aflj1\.[A-Za-z0-9_-]+\n\Z")
        code, _, err = self.federation.server_command("enroll", "--name", "f", "--output", path)
        self.assertEqual(code, 1)
        self.assertIn(f"{path} is there already", err)
        self.assertEqual(self.federation.query("SELECT count(*) FROM token WHERE client = 'f'"), [(0,)])

        command = [BIN / "fl-server", "--state", self.federation.state, "enroll", "--name", "g"]
        for mode, warns in ((0o600, False), (0o640, True), (0o644, True)):
            redirected = self.federation.folder / f"{mode:o}.token"
            redirected.touch(mode)
            redirected.chmod(mode)
            with redirected.open("w") as file:
                done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=True)
            self.assertEqual("'chmod 600' makes it private" in done.stderr, warns, done.stderr)
        piped = subprocess.run(command, capture_output=True, text=True, check=True)
        self.assertNotIn("chmod", piped.stderr)

    def test_a_token_for_a_name_that_is_taken_comes_with_a_warning(self):
        code, out, err = self.federation.server_command("enroll", "--name", "a")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"\Aflj1\.[A-Za-z0-9_-]+\n\Z")
        self.assertIn("'a' has joined already", err)

    def test_a_server_whose_state_has_lost_a_part_does_not_start(self):
        state = self.federation.state
        self.server.wait_for("waiting for")
        self.server.signal(signal.SIGTERM)
        self.expect_exit(self.server)
        for lost, what in (("identity", "3 clients have certificates"), ("history.sqlite", "history.sqlite is older than")):
            with self.subTest(lost=lost):
                shutil.move(state / lost, self.federation.folder / "lost")
                (state / "checkpoints").mkdir(exist_ok=True)
                (state / "checkpoints" / "round-000000.safetensors").touch()
                server = self.federation.server(ready=False)
                self.expect_exit(server, 1)
                self.assertIn(what, server.stderr())
                self.assertFalse((state / lost).exists() and lost == "history.sqlite")
                shutil.rmtree(state / lost, ignore_errors=True)
                if lost == "history.sqlite":
                    (state / lost).touch()
                    server = self.federation.server(ready=False)
                    self.expect_exit(server, 1)
                    self.assertIn(what, server.stderr())
                    self.assertEqual((state / lost).stat().st_size, 0)
                shutil.move(self.federation.folder / "lost", state / lost)

    def test_wrong_tokens_are_refused_and_told_why(self):
        token = self.federation.token("d")
        last = "B" if token[20] == "A" else "A"
        self.refused("nonsense", "not a join token")
        self.refused(token[:-5], "cut short")
        self.refused(token[:20] + last + token[21:], "mistyped")
        self.refused(forge(token, secret=bytes(16)), "does not know this join token")
        self.refused(forge(token, fingerprint=bytes(32)), "is not the one that this join token was made for")
        short = self.federation.token("e", "--expires", 1)
        time.sleep(1.1)
        self.refused(short, "expired")
        code, _, err = self.federation.command(
            "fl-client", "join", token, "--state", self.federation.folder / "d"
        )
        self.assertEqual(code, 0, err)
        self.refused(token, "already used")

    def test_joining_and_training_in_one_command(self):
        client = self.federation.client("d", "--join", self.federation.token("d"))
        self.server.wait_for("d is here")
        client.signal(signal.SIGINT)
        self.expect_exit(client)
        # This command does not need the token again. A damaged token is still an error, but a token
        # that was used elsewhere only gives a warning.
        again = self.federation.client("d", "--join", "flj1.mistyped")
        self.expect_exit(again, 1)
        self.assertIn("cut short", again.stderr())
        used = self.federation.token("e")
        elsewhere = self.federation.folder / "e"
        self.federation.command("fl-client", "join", used, "--state", elsewhere)
        again = self.federation.client("d", "--join", used)
        again.wait_for("already used")
        again.wait_for("client 'd'")

    def test_a_new_token_takes_the_place_of_what_is_there(self):
        token = self.federation.token("a")
        elsewhere = self.federation.folder / "elsewhere"
        code, _, err = self.federation.command("fl-client", "join", token, "--state", elsewhere)
        self.assertEqual(code, 0, err)
        outdated = self.federation.client("a")
        self.expect_exit(outdated, 1, 10)
        self.assertIn("join again with a new token", outdated.stderr())
        again = self.federation.client("a", "--join", self.federation.token("a"))
        self.server.wait_for("a is here")
        again.signal(signal.SIGINT)
        self.expect_exit(again)
        stranger = forge(self.federation.token("a"), fingerprint=bytes(32))
        for command in (["--join", stranger], ["join", stranger]):
            other = self.federation.client("a", *command)
            self.expect_exit(other, 1)
            self.assertIn("of another federation than the join token's", other.stderr())

    def test_two_programs_with_one_identity_are_seen_and_slow_down(self):
        copy = self.federation.folder / "copy"
        shutil.copytree(self.federation.folder / "a", copy)
        original = self.federation.client("a")
        self.server.wait_for("a is here")
        other = self.federation.start("copy", [BIN / "fl-client", "--state", copy])
        self.server.wait_for("do two programs use one identity")
        time.sleep(3)
        # Each waits twice as long as before. Otherwise there would be hundreds of sessions.
        self.assertLess(self.server.stderr().count("a is here"), 30)
        for client in (original, other):
            client.signal(signal.SIGINT)
            self.expect_exit(client)

    def test_a_token_can_be_taken_back(self):
        token = self.federation.token("f")
        code, out, err = self.federation.server_command("revoke", "f")
        self.assertEqual(code, 0, err)
        self.assertIn("the tokens of 'f' are void", out)
        self.refused(token, "does not know this join token")
        wait_until(
            "the refusal is in the history",
            lambda: "an enrolment was refused"
            in self.federation.server_command("history", "--events")[1],
            5,
        )

    def test_a_wrong_data_set_costs_no_token(self):
        token = self.federation.token("d")
        client = self.federation.client("d", "--join", token, "--data", "idx:/nonesuch")
        self.expect_exit(client, 1)
        self.assertIn("/nonesuch", client.stderr())
        used = "SELECT count(*) FROM token WHERE used_at > 0 AND client = 'd'"
        self.assertEqual(self.federation.query(used), [(0,)])

    def test_joining_again_with_another_key_makes_the_first_certificate_invalid(self):
        first = self.federation.client("a")
        self.server.wait_for("a is here")
        elsewhere = self.federation.folder / "elsewhere"
        token = self.federation.token("a")
        code, _, err = self.federation.command("fl-client", "join", token, "--state", elsewhere)
        self.assertEqual(code, 0, err)
        self.expect_exit(first, 1, 10)
        self.assertIn("this name was enrolled again with a new key", first.stderr())
        again = self.federation.client("a")
        self.expect_exit(again, 1, 10)
        self.assertIn("'a' has a newer certificate than this one", again.stderr())
        self.federation.start("elsewhere", [BIN / "fl-client", "--state", elsewhere])
        wait_until("a is back", lambda: self.server.stderr().count("a is here") == 2)

    def test_revoking_ends_the_session_within_a_second(self):
        client = self.federation.client("a")
        self.server.wait_for("a is here")
        code, _, err = self.federation.server_command("revoke", "a")
        revoked = time.monotonic()
        self.assertEqual(code, 0, err)
        self.expect_exit(client, 1, 10)
        took = time.monotonic() - revoked
        print(f"revoked: the session ended after {1000 * took:.0f} ms")
        self.assertLess(took, 1.0)
        self.assertIn("revoked", client.stderr())
        again = self.federation.client("a")
        self.expect_exit(again, 1, 10)
        self.assertIn("'a' was revoked", again.stderr())
        code, _, err = self.federation.server_command("enroll", "--name", "a")
        self.assertEqual(code, 1)
        self.assertIn("revoked", err)
        code, _, err = self.federation.server_command("revoke", "nobody")
        self.assertEqual(code, 1)
        self.assertIn("nobody", err)


if __name__ == "__main__":
    unittest.main()
