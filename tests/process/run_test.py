# SPDX-License-Identifier: Apache-2.0
"""A run from its first flag to its history, as a user sees it."""

import contextlib
import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import unittest
import urllib.request

from federation import BIN, FederationTest, wait_until

SUMMARY = [
    "run_id",
    "round",
    "started_at",
    "seconds",
    "clients_offered",
    "clients_accepted",
    "bytes_up",
    "bytes_down",
    "train_loss",
    "eval_loss",
    "eval_accuracy",
    "model_digest",
]
RUN = ("--new-run", "--model", "synthetic:5000", "--min-clients", 3, "--rounds", 3)


METHODS = ["scaffold", "feddyn:alpha=0.1", "fedyogi:lr=0.01", "fednova", "signvote:lr=0.001"]


class Strategies(FederationTest):
    names = ("a", "b")
    flags = ("--new-run", "--model", "synthetic:3000", "--rounds", 3)

    def test_a_run_by_each_kind_of_method(self):
        federation = self.make()
        for method in METHODS:
            with self.subTest(method=method):
                server = federation.server(*self.flags, "--strategy", method, "--codec", "qsgd:8")
                clients = [federation.client(name) for name in self.names]
                for program in [server, *clients]:
                    self.expect_exit(program)
                self.assertEqual(len(set(federation.digests())), 4, "each round moves the model")

    def test_the_control_variate_lies_in_the_checkpoint_beside_the_model(self):
        federation = self.make()
        server = federation.server(*self.flags, "--strategy", "scaffold")
        for program in [server, *[federation.client(name) for name in self.names]]:
            self.expect_exit(program)
        newest = sorted(federation.checkpoints.glob("*.safetensors"))[-1].read_bytes()
        header = json.loads(newest[8 : 8 + int.from_bytes(newest[:8], "little")])
        tensors = [name for name in header if name != "__metadata__"]
        self.assertEqual(len(tensors), 2)
        self.assertEqual(tensors[1], f"control.{tensors[0]}")

    def test_the_method_of_a_run_that_has_begun_stays(self):
        federation = self.make()
        server = federation.server(*self.flags, "--strategy", "fedadam", "--rounds", 500)
        clients = [federation.client(name) for name in self.names]
        wait_until("a round", lambda: federation.rounds_done() >= 1)
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        for client in clients:
            client.kill()
        code, _, err = federation.command(
            "fl-server", "--state", federation.state, "--admin", "off", "--strategy", "fedavg"
        )
        self.assertGreater(code, 0)
        self.assertIn('has --strategy "fedadam"', err)

    def test_the_methods_are_listed_and_misfits_refused(self):
        federation = self.make()
        code, out, _ = federation.command("fl-server", "strategies")
        self.assertEqual(code, 0)
        for name in ("fedavg", "scaffold", "fednova", "fedyogi", "weight=uniform"):
            self.assertIn(name, out)
        code, _, err = federation.command(
            "fl-server", "--state", federation.folder / "other", "--strategy", "scaffold",
            "--optimizer", "adam"
        )
        self.assertGreater(code, 0)
        self.assertIn("only compute that for --optimizer sgd and nesterov", err)
        for flags in ((), ("--codec", "*=ecuq:2+ef"), ("--codec", "auto:sign|ecuq:1")):
            code, _, err = federation.command(
                "fl-server", "--state", federation.folder / "other", "--listen", "127.0.0.1:0",
                "--admin", "off", "--strategy", "signvote:lr=0.1", *flags
            )
            self.assertGreater(code, 0)
            self.assertIn("this strategy counts signs", err)


class Asynchronous(FederationTest):
    names = ("a", "b", "c")
    flags = ("--model", "synthetic:20000", "--mode", "async:buffer=2,ahead=5", "--rounds", 40)

    def test_a_run_ends_whatever_is_killed(self):
        federation = self.make()
        server = federation.server("--new-run", *self.flags)
        clients = {name: federation.client(name) for name in self.names}
        wait_until("a few versions", lambda: federation.rounds_done() >= 5)
        clients["b"].kill()
        server.kill()
        server = federation.server(*self.flags, "--codec", "kbit:8+ef")
        clients["b"] = federation.client("b")
        for program in [server, *clients.values()]:
            self.expect_exit(program)
        self.assertEqual(len(set(federation.digests())), 41, "each round moves the model")
        rows = federation.query("SELECT clients_accepted FROM round_summary")
        self.assertEqual({row[0] for row in rows}, {2})
        undecided = federation.query("SELECT count(*) FROM task WHERE state = 'offered'")
        self.assertEqual(undecided[0][0], 0)

    def test_settings_that_do_not_fit_are_refused(self):
        federation = self.make()
        for misfit, why in [
            (("--strategy", "scaffold"), "keep nothing at the clients"),
            (("--over-select", "1.5"), "synchronous rounds"),
        ]:
            code, _, err = federation.command(
                "fl-server", "--state", federation.folder / "other", *self.flags, *misfit
            )
            self.assertGreater(code, 0)
            self.assertIn(why, err)


class WholeRun(FederationTest):
    def run_to_end(self, federation, *flags):
        server = federation.server(*flags)
        clients = [federation.client(name) for name in self.names]
        for program in [server, *clients]:
            self.expect_exit(program)
        return server

    def test_history_shows_the_run_in_every_form(self):
        federation = self.make()
        server = self.run_to_end(federation, *RUN)

        columns = [row[1] for row in federation.query("PRAGMA table_info(round_summary)")]
        self.assertEqual(columns, SUMMARY)
        rows = federation.query(
            "SELECT * FROM round_summary WHERE run_id = (SELECT max(id) FROM run) ORDER BY round"
        )
        self.assertEqual([row[1] for row in rows], [1, 2, 3])
        for row in rows:
            summary = dict(zip(SUMMARY, row))
            self.assertEqual((summary["clients_offered"], summary["clients_accepted"]), (3, 3))
            self.assertGreater(summary["bytes_up"], 3 * 4 * 5000)
            # Every client makes version 0 from the seed, so round 1 has no download.
            downloaded = summary["bytes_down"] > 3 * 4 * 5000
            self.assertEqual(downloaded, summary["round"] > 1)
            self.assertGreater(summary["seconds"], 0)
        self.assertEqual(len(set(federation.digests())), 4, "each round makes another model")

        _, table, _ = federation.server_command("history")
        lines = table.splitlines()
        self.assertEqual("run 2 (synthetic:5000, fedavg, none): finished", lines[0])
        self.assertEqual([line.split()[0] for line in lines[2:]], ["round", "1", "2", "3", "total"])
        self.assertIn(
            "\n".join(lines[2:]), server.stdout(), "the server prints the same summary at its end"
        )
        self.assertIn(str(federation.checkpoints), server.stdout())

        _, text, _ = federation.server_command("history", "--json")
        self.assertEqual(
            [tuple(entry[column] for column in SUMMARY) for entry in json.loads(text)], rows
        )
        _, text, _ = federation.server_command("history", "--csv")
        lines = list(csv.reader(io.StringIO(text)))
        more = ["own_accuracy", "metric", "eval_metric", "own_metric", "is_exact", "is_best"]
        self.assertEqual(lines[0], [*SUMMARY, *more])
        self.assertEqual(
            [(line[1], line[len(SUMMARY) - 1]) for line in lines[1:]],
            [(str(row[1]), row[-1]) for row in rows],
        )
        _, text, _ = federation.server_command("history", "--codecs", "--json")
        (codec,) = json.loads(text)
        self.assertEqual((codec["codec"], codec["updates"]), ("none", 9))
        self.assertEqual(codec["raw_bytes"], 9 * 4 * 5000)
        self.assertGreater(codec["update_bytes"], codec["raw_bytes"])
        self.assertGreater(codec["encode_seconds"], 0)
        self.assertGreater(codec["decode_seconds"], 0)
        self.assertEqual(codec["nmse"], 0)

        _, text, _ = federation.server_command("history", "--events", "--json")
        events = [entry["text"] for entry in json.loads(text)]
        self.assertRegex(events[0], "fl-server .* starts")
        self.assertRegex(events[-1], "the run is over")
        here = [event for event in events if "is here: trainer" in event]
        self.assertEqual(sorted(event[0] for event in here), list(self.names))
        _, text, _ = federation.server_command("clients", "--json")
        self.assertEqual([client["name"] for client in json.loads(text)], list(self.names))

    def test_a_finished_run_goes_on_only_when_told_how(self):
        federation = self.make()
        self.run_to_end(federation, *RUN)
        three = federation.digests()

        again = federation.server(ready=False)
        self.expect_exit(again, 1)
        self.assertIn("--rounds", again.stderr())
        self.assertIn("--new-run", again.stderr())

        self.run_to_end(federation, "--rounds", 5)
        self.assertEqual(federation.rounds_done(), 5)
        self.assertEqual(federation.digests()[:4], three)
        first = federation.checkpoints
        before = {path.name: path.read_bytes() for path in first.iterdir()}

        self.run_to_end(federation, *RUN, "--rounds", 2)
        self.assertEqual(federation.digests(), three[:3], "the same seed makes the same models")
        self.assertNotEqual(federation.checkpoints, first)
        after = {path.name: path.read_bytes() for path in first.iterdir()}
        self.assertEqual(after, before, "another run leaves the first one's checkpoints alone")
        _, text, _ = federation.server_command("history", "--json", "--all")
        self.assertEqual([entry["round"] for entry in json.loads(text)][-7:], [1, 2, 3, 4, 5, 1, 2])

    def test_a_longer_run_stays_longer(self):
        federation = self.make()
        self.run_to_end(federation, *RUN, "--rounds", 1)
        server = federation.server("--rounds", 2)
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        self.run_to_end(federation)
        self.assertEqual(federation.rounds_done(), 2)

    def test_a_server_that_stays_runs_what_is_queued(self):
        federation = self.make()
        server = federation.server(*RUN, "--stay")
        clients = [federation.client(name, "--stay") for name in self.names]
        server.wait_for("waiting for another run")
        for seed in (1, 2):
            flags = ("--model", f"synthetic:{6000 + seed}", "--rounds", 2, "--min-clients", 3)
            code, out, err = federation.server_command("queue", *flags, "--seed", seed)
            self.assertEqual(code, 0, err)
            self.assertIn(f"synthetic:{6000 + seed}", out)
        runs = "SELECT model, seed, state, rounds_total FROM run ORDER BY id DESC LIMIT 3"
        done = [
            ("synthetic:6002", "2", "finished", 2),
            ("synthetic:6001", "1", "finished", 2),
            ("synthetic:5000", "0", "finished", 3),
        ]
        wait_until("all runs are over", lambda: federation.query(runs) == done)
        self.assertEqual(federation.rounds_done(), 2)
        self.assertTrue((federation.checkpoints / "round-000002.safetensors").exists())
        for program in [*clients, server]:
            program.signal(signal.SIGTERM)
            self.expect_exit(program)

    def test_a_server_that_stays_can_be_restarted_between_two_runs(self):
        federation = self.make()
        clients = [federation.client(name, "--stay") for name in self.names]
        server = federation.server(*RUN, "--stay")
        server.wait_for("waiting for another run")
        server.kill()
        server = federation.server("--rounds", 3, "--min-clients", 3, "--lr", 0.5, "--stay")
        server.wait_for("waiting for another run")
        # Nothing else would say that an edited file of settings begins no run.
        self.assertIn("is over, and --lr given now change nothing", server.stderr())
        queue = ("queue", "--min-clients", 3, "--rounds")
        federation.server_command(*queue, 1, "--model", "synthetic:8000")
        wait_until(
            "the queued run is over",
            lambda: federation.query("SELECT max(id), state FROM run")[0][1] == "finished",
        )
        for program in [*clients, server]:
            program.signal(signal.SIGTERM)
            self.expect_exit(program)

    def test_a_run_that_no_client_can_train_lets_others_go_first(self):
        federation = self.make()
        clients = [federation.client(name, "--stay", "--model", "synthetic:5000") for name in self.names]
        server = federation.server(*RUN, "--stay", "--queue-patience", 1)
        server.wait_for("waiting for another run")
        queue = ("queue", "--min-clients", 3, "--rounds", 2, "--model")
        code, _, err = federation.server_command(*queue, "synthetic:7000")
        self.assertEqual(code, 0, err)
        self.assertIn("none of the clients that were here in the last day trains 'synthetic:7000'", err)
        for name in self.names:
            self.assertIn(f"{name} trains only 'synthetic:5000'", err)
        server.wait_for("was turned away")
        code, _, err = federation.server_command(*queue, "synthetic:5000")
        self.assertNotIn("trains only", err)
        states = "SELECT model, state FROM run WHERE queued ORDER BY id"
        done = [("synthetic:7000", "waiting"), ("synthetic:5000", "finished")]
        wait_until("the run that fits is over", lambda: federation.query(states) == done)
        (text,) = federation.query("SELECT text FROM event WHERE text LIKE '%steps aside%'")[0]
        self.assertIn("its clients can't take part: a: the client trains 'synthetic:5000'", text)
        for program in [*clients, server]:
            program.signal(signal.SIGTERM)
            self.expect_exit(program)

    def test_a_queued_run_keeps_its_own_settings(self):
        federation = self.make()
        self.run_to_end(federation, *RUN, "--rounds", 1)
        queued = ("--min-clients", 3, "--rounds", 4, "--lr", 0.5, "--model", "synthetic:6000")
        federation.server_command("queue", *queued)
        server = federation.server("--rounds", 2, "--lr", 0.1, "--model", "synthetic:5000")
        server.wait_for("flags given now do not change it")
        for client in [federation.client(name) for name in self.names]:
            self.expect_exit(client)
        self.expect_exit(server)
        self.assertEqual(federation.rounds_done(), 4)
        (config,) = federation.query("SELECT config_json FROM run ORDER BY id DESC LIMIT 1")[0]
        self.assertEqual(json.loads(config)["lr"], 0.5)

    def test_a_queued_run_that_can_not_begin_is_given_up(self):
        federation = self.make()
        self.run_to_end(federation, *RUN, "--rounds", 1)
        weights = federation.state.parent / "weights.safetensors"
        shutil.copy(federation.checkpoints / "round-000001.safetensors", weights)
        queue = ("queue", "--min-clients", 3, "--rounds", 1, "--initial-weights", weights)
        code, _, err = federation.server_command(*queue, "--model", "synthetic:6000")
        self.assertEqual(code, 1)
        self.assertIn("--initial-weights", err)
        code, _, err = federation.server_command(*queue, "--model", "synthetic:5000")
        self.assertEqual(code, 0, err)
        federation.server_command(*queue[:-2], "--model", "synthetic:7000")
        weights.unlink()
        server = federation.server()
        for client in [federation.client(name) for name in self.names]:
            self.expect_exit(client)
        self.expect_exit(server)
        self.assertIn("is given up", server.stderr())
        states = federation.query("SELECT model, state FROM run ORDER BY id DESC LIMIT 2")
        self.assertEqual(
            states, [("synthetic:7000", "finished"), ("synthetic:5000", "stopped")]
        )
        (why,) = federation.query("SELECT text FROM event WHERE level = 'error'")[0]
        self.assertIn(str(weights), why)

    def test_changed_settings_stay_changed(self):
        federation = self.make()
        for flags in ((*RUN,), ("--lr", 0.5), ()):
            server = federation.server(*flags)
            server.signal(signal.SIGTERM)
            self.expect_exit(server)
        (config,) = federation.query("SELECT config_json FROM run ORDER BY id DESC LIMIT 1")[0]
        self.assertEqual(json.loads(config)["lr"], 0.5)
        _, events, _ = federation.server_command("history", "--events")
        self.assertRegex(events, r"--lr is 0\.5 from here on, and was 0\.\d+\n")
        self.assertEqual(events.count("from here on"), 1)

    def test_a_port_that_is_taken_costs_no_run(self):
        federation = self.make()
        server = federation.server(*RUN)
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        with socket.create_server(("127.0.0.1", federation.port)):
            other = federation.server(*RUN, ready=False)
            self.expect_exit(other, 1)
            self.assertIn("the port is taken", other.stderr())
        (state,) = federation.query("SELECT state FROM run ORDER BY id DESC LIMIT 1")[0]
        self.assertEqual(state, "waiting")

    def test_a_run_that_is_queued_without_a_server_is_the_next(self):
        federation = self.make()
        server = federation.server(*RUN)
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        code, out, err = federation.server_command("queue", "--model", "synthetic:7000")
        self.assertEqual(code, 0, err)
        self.assertIn("is not finished", out)
        code, _, err = federation.server_command("queue", "--model", "resnet")
        self.assertEqual(code, 1)
        self.assertIn("--model", err)
        code, _, err = federation.server_command("queue")
        self.assertEqual(code, 1)
        self.assertIn("history --runs", err)
        code, _, err = federation.server_command("queue", "--drop", 1, "--rounds", 3)
        self.assertEqual(code, 2)
        self.assertIn("'queue' does not use it here", err)
        code, _, err = federation.server_command("queue", "--new-run")
        self.assertEqual(code, 2)
        self.assertIn("--new-run is for the server itself", err)
        code, _, err = federation.server_command("history", "--rounds", "7")
        self.assertEqual(code, 2)
        self.assertIn("--rounds is a setting of a run", err)
        _, out, _ = federation.server_command("queue", "--model", "synthetic:9000")
        last = int(out.split()[1])
        _, out, _ = federation.server_command("history", "--runs", "--json")
        runs = {run["run_id"]: run for run in json.loads(out)}
        self.assertEqual((runs[last]["model"], runs[last]["state"]), ("synthetic:9000", "waiting"))
        self.assertEqual((runs[last]["rounds"], runs[last]["rounds_wanted"]), (0, 10))
        self.assertEqual(runs[last]["settings"]["model"], "synthetic:9000")
        # Without --model a queued run has the model of the run before it.
        _, out, _ = federation.server_command("queue", "--rounds", 2)
        self.assertIn("(synthetic:9000, fedavg, ecuq:4) with 2 rounds is queued", out)
        federation.server_command("queue", "--drop", last + 1)
        code, out, err = federation.server_command("queue", "--drop", last)
        self.assertEqual(code, 0, err)
        self.assertIn(f"run {last} is removed: it had no model yet", out)
        for run, reason in ((last, "is over"), (last + 9, "there is no run")):
            code, _, err = federation.server_command("queue", "--drop", run)
            self.assertEqual(code, 1)
            self.assertIn(reason, err)
        server = federation.server()
        clients = [federation.client(name) for name in self.names]
        for client in clients:
            self.expect_exit(client)
        server.wait_for("(synthetic:7000, fedavg, ecuq:4): 10 rounds")
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        states = federation.query("SELECT state FROM run ORDER BY id DESC LIMIT 3")
        self.assertEqual(states, [("stopped",), ("stopped",), ("waiting",)])

    def test_a_checkpoint_that_is_gone_is_named_with_what_to_do(self):
        federation = self.make()
        self.run_to_end(federation, *RUN)
        ((folder, file),) = federation.query(
            "SELECT run.checkpoints, file FROM checkpoint JOIN run ON run.id = run_id"
            " ORDER BY run_id DESC, version DESC LIMIT 1"
        )
        newest = federation.state / "checkpoints" / folder / file
        saved = newest.rename(federation.folder / "saved")
        server = federation.server("--rounds", 4, ready=False)
        self.expect_exit(server, 1)
        self.assertIn(file, server.stderr())
        self.assertIn("put it back", server.stderr())
        saved.rename(newest)
        server = federation.server("--rounds", 4)
        server.signal(signal.SIGTERM)
        self.expect_exit(server)

    def test_settings_of_a_run_can_not_change_what_it_trains(self):
        federation = self.make()
        server = federation.server(*RUN)
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        for flag, value in (("--model", "synthetic:6000"), ("--seed", 7)):
            other = federation.server(flag, value, ready=False)
            self.expect_exit(other, 1)
            self.assertIn("--new-run", other.stderr())

    def test_a_run_may_begin_with_given_weights(self):
        federation = self.make()
        self.run_to_end(federation, *RUN, "--rounds", 1)
        last = federation.digests()[-1]
        weights = federation.state.parent / "weights.safetensors"
        shutil.copy(federation.checkpoints / "round-000001.safetensors", weights)

        server = federation.server(*RUN, "--rounds", 1, "--initial-weights", weights)
        server.wait_for("waiting for 3 clients")
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        self.run_to_end(federation)  # The run remembers its initial weights.
        first, second = federation.digests()
        self.assertEqual(first, last)
        self.assertNotEqual(second, last)

        none = weights.with_name("none.safetensors")
        no_number = weights.with_name("nan.safetensors")
        no_number.write_bytes(weights.read_bytes()[:-4] + b"\0\0\xc0\x7f")
        runs = "SELECT count(*) FROM run"
        before = federation.query(runs)
        for flags, status, says in (
            (("--model", "synthetic:6000", "--initial-weights", weights), 1, "5000"),
            (("--initial-weights", none), 2, str(none)),
            (("--initial-weights", no_number), 1, "[4999] is nan"),
        ):
            server = federation.server(*RUN, *flags, ready=False)
            self.expect_exit(server, status)
            self.assertIn("--initial-weights", server.stderr())
            self.assertIn(says, server.stderr())
        self.assertEqual(federation.query(runs), before, "no run was begun")

    def test_a_run_does_not_continue_from_a_damaged_model(self):
        federation = self.make()
        self.run_to_end(federation, *RUN, "--rounds", 2)
        newest = federation.checkpoints / "round-000002.safetensors"
        whole = newest.read_bytes()
        newest.write_bytes(whole[:-2000] + b"\1" + whole[-1999:])
        server = federation.server("--rounds", 3, ready=False)
        self.expect_exit(server, 1)
        self.assertIn("round-000002.safetensors: the values are not those", server.stderr())
        newest.write_bytes(whole)
        self.run_to_end(federation, "--rounds", 3)
        self.assertEqual(federation.rounds_done(), 3)

    def test_the_status_line_fits_the_terminal(self):
        federation = self.make()
        for columns in (40, 150):
            main, terminal = pty.openpty()
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
            place = ["--state", federation.folder / str(columns), "--listen", "127.0.0.1:0"]
            server = subprocess.Popen(
                [BIN / "fl-server", *place, "--admin", "off"],
                stdout=subprocess.DEVNULL,
                stderr=terminal,
            )
            os.close(terminal)
            seen = b""
            while seen.count(b"\033[K") < 3:
                seen += os.read(main, 4096)
            server.kill()
            server.wait()
            os.close(main)
            lines = re.findall("\033\\[K(round [^\r\n]*)", seen.decode(errors="replace"))
            longest = max(len(line) for line in lines)
            self.assertLess(longest, columns)
            self.assertEqual(longest == columns - 1, columns == 40, "it is cut only where it must be")

    def test_old_checkpoints_are_removed(self):
        federation = self.make()
        self.run_to_end(federation, *RUN, "--rounds", 6, "--keep-checkpoints", 2)
        kept = federation.query(
            "SELECT file FROM checkpoint WHERE dropped_at IS NULL"
            " AND run_id = (SELECT max(id) FROM run) ORDER BY version"
        )
        self.assertEqual(len(kept), 2)
        files = {path.name for path in (federation.checkpoints).iterdir()}
        self.assertEqual(files, {file for (file,) in kept})
        self.assertEqual(list((federation.state / "spool").iterdir()), [])

    def test_ready_file_and_admin_pages(self):
        federation = self.make()
        server = federation.server(*RUN, "--stay", "--admin", "127.0.0.1:0")
        ready = server.ready
        self.assertEqual(
            (ready["listen"], ready["pid"]), (f"127.0.0.1:{federation.port}", server.pid)
        )
        self.assertEqual(len(ready["run"]), 16)

        def page(path):
            with urllib.request.urlopen(f"http://{ready['admin']}{path}", timeout=10) as answer:
                return answer.headers["Content-Type"], answer.read().decode()

        wait_until(
            "waiting",
            lambda: (
                "waiting for 3 clients (0 are here)" == json.loads(page("/healthz")[1])["phase"]
            ),
        )
        clients = [federation.client(name) for name in self.names]
        for client in clients:
            self.expect_exit(client)
        health = wait_until(
            "finished", lambda: (h := json.loads(page("/healthz")[1]))["phase"] == "finished" and h
        )
        self.assertEqual((health["round"], health["rounds"], health["run"]), (3, 3, ready["run"]))

        kind, text = page("/metrics")
        self.assertIn("version=0.0.4", kind)
        values, types = {}, {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                types.update([line.split()[2:]])
            elif not line.startswith("#"):
                name, value = line.rsplit(maxsplit=1)
                values[name] = float(value)
        families = {re.sub(r"\{.*|_(bucket|sum|count)$", "", re.sub(r"\{.*", "", n)) for n in values}
        self.assertLessEqual(families, set(types))
        self.assertEqual(values["tributary_round"], 3)
        self.assertEqual(values['tributary_updates_total{outcome="accepted"}'], 9)
        self.assertEqual(values["tributary_round_duration_seconds_count"], 3)
        self.assertGreater(values["tributary_received_bytes_total"], 3 * 3 * 4 * 5000)

        kind, text = page("/api/rounds")
        self.assertEqual((kind, len(json.loads(text))), ("application/json", 3))
        with self.assertRaises(urllib.error.HTTPError) as unknown:
            page("/secret")
        self.assertEqual(unknown.exception.code, 404)
        unknown.exception.close()
        server.signal(signal.SIGINT)
        self.expect_exit(server)

    def test_admin_pages_have_a_lock(self):
        """Requests with another host's name, without the token, over a Unix socket; and page by page."""
        federation = self.make()
        token = federation.folder / "token"
        token.write_text("correct horse battery\n")
        place = federation.folder / "admin.sock"
        guard = ("--admin-token-file", token, "--admin-host", "trainer.example,other.example")
        server = federation.server(*RUN, "--stay", "--admin", f"unix:{place}", *guard)
        self.assertEqual(server.ready["admin"], f"unix:{place}")

        def get(path, host="trainer.example:80", bearer="correct horse battery"):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(place))
                head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {bearer}\r\n"
                line.sendall(f"{head}\r\n".encode())
                with line.makefile() as answer:
                    head, _, body = answer.read().partition("\n\n")
            return int(head.split()[1]), json.loads(body)

        self.assertEqual(get("/healthz")[0], 200)
        self.assertEqual(get("/healthz", host="localhost")[0], 200)
        code, body = get("/healthz", host="evil.example")
        self.assertEqual(code, 421)
        self.assertIn("--admin-host", body["error"])
        for bearer in ("", "correct horse batter", "correct horse battery!"):
            self.assertEqual(get("/healthz", bearer=bearer)[0], 401)
        for client in [federation.client(name) for name in self.names]:
            self.expect_exit(client)
        self.assertEqual([row["round"] for row in get("/api/rounds?after=1&limit=1")[1]], [2])
        code, body = get("/api/rounds?limit=1000000")
        self.assertEqual(code, 400)
        self.assertIn("limit=1000000: it must be a whole number", body["error"])
        server.signal(signal.SIGINT)
        self.expect_exit(server)
        self.assertFalse(place.exists())

    def test_idle_requests_do_not_take_every_descriptor(self):
        federation = self.make()
        server = federation.server(*RUN, "--admin", "127.0.0.1:0")
        host, _, port = server.ready["admin"].rpartition(":")
        with contextlib.ExitStack() as idle:
            lines = [
                idle.enter_context(socket.create_connection((host, int(port)))) for _ in range(100)
            ]

            def held():
                """Returns the number of connections that the server has not closed."""
                ended, _, _ = select.select(lines, [], [], 0)
                return len(lines) - len(ended)

            wait_until("those of one address are held", lambda: held() == 24)
            # The training still goes on.
            for program in [*(federation.client(name) for name in self.names), server]:
                self.expect_exit(program)

    def test_json_logs_are_json(self):
        federation = self.make()
        server = federation.server(*RUN, "--log-json")
        clients = [federation.client(name, "--log-json") for name in self.names]
        for program in [server, *clients]:
            self.expect_exit(program)
            lines = [json.loads(line) for line in program.stderr().splitlines()]
            self.assertGreater(len(lines), 3)
            for line in lines:
                self.assertEqual(set(line), {"time", "level", "message"})

    def test_an_evaluator_that_can_not_evaluate_says_so(self):
        federation = self.make()
        server = federation.server(*RUN, "--min-clients", 2)
        evaluator = federation.client("c", "--evaluate-only")
        self.expect_exit(evaluator, 1)
        self.assertIn("can't be evaluated", evaluator.stderr())
        for program in [federation.client("a"), federation.client("b"), server]:
            self.expect_exit(program)
        asked = federation.query(
            "SELECT DISTINCT client FROM task WHERE run_id = (SELECT max(id) FROM run)"
        )
        self.assertEqual(sorted(asked), [("a",), ("b",)])


if __name__ == "__main__":
    unittest.main()
