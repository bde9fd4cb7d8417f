# SPDX-License-Identifier: Apache-2.0
"""Operators: who may control the server over its admin pages, from where, and what is recorded."""

import contextlib
import getpass
import http.client
import json
import re
import signal
import unittest
import urllib.error
import urllib.request

from federation import BIN, FederationTest, wait_until

RUN = ("--model", "synthetic:2000", "--min-clients", 2)


class Page:
    """A browser or a script at the admin pages."""

    def __init__(self, server, token="", cookie=""):
        self.address, self.token, self.cookie = server.ready["admin"], token, cookie

    def ask(self, method, path, body=None, **headers):
        """Returns the status, the JSON and the cookie of the answer."""
        given = {"Content-Type": "application/json"}
        if self.token:
            given["Authorization"] = f"Bearer {self.token}"
        if self.cookie:
            given["Cookie"] = self.cookie
        given.update({name.replace("_", "-"): value for name, value in headers.items()})
        text = body if isinstance(body, (str, type(None))) else json.dumps(body)
        line = http.client.HTTPConnection(self.address, timeout=30)
        with contextlib.closing(line):
            line.request(method, path, text, given)
            answer = line.getresponse()
            cookie = answer.headers.get("Set-Cookie", "")
            return answer.status, json.loads(answer.read()), cookie

    def act(self, action, body, **headers):
        return self.ask("POST", f"/api/control/{action}", body, **headers)[:2]


class Operators(FederationTest):
    names = ("a", "b")

    def operator(self, federation, name, role):
        code, out, err = federation.server_command("operator", "add", name, "--role", role)
        self.assertEqual(code, 0, err)
        return out.strip()

    def start(self, *flags):
        federation = self.make()
        flags = ("--new-run", *RUN, "--rounds", 100000, "--stay", "--admin", "127.0.0.1:0", *flags)
        return federation, federation.server(*flags)

    def test_figures_of_one_clients_data_are_on_the_pages_only_by_leave(self):
        for name, flags in (("hidden", ()), ("shown", ("--admin-show-clients",))):
            with self.subTest(name):
                federation = FederationTest.make(self, name)
                server = federation.server("--new-run", *RUN, "--admin", "127.0.0.1:0", *flags)
                token = federation.token("small", "--max-examples", 7)
                state = ("--state", federation.folder / "small")
                self.assertEqual(federation.command("fl-client", "join", token, *state)[0], 0)
                self.expect_exit(federation.client("small"), 1)
                federation.client("a").wait_for("synthetic:2000")
                page = Page(server)
                seen = lambda path: json.dumps(page.ask("GET", path)[1])  # noqa: E731
                wait_until("the events", lambda: "a is here" in seen("/api/log") and "small" in seen("/api/log"))
                for path in ("/api/log", "/api/fleet"):
                    self.assertEqual("with at most 7:" in seen(path), name == "shown", seen(path))
                    self.assertIn("small (127.0.0.1:", seen(path))
                self.assertEqual(bool(re.search(r"trainer, \d+ examples", seen("/api/log"))), name == "shown")

    def audit(self, federation, kind):
        rows = json.loads(federation.server_command("audit", "--json")[1])
        return [(row["who"], row["client"], row["text"]) for row in rows if row["kind"] == kind]

    def test_the_token_is_shown_once_and_its_hash_is_kept(self):
        federation = self.make()
        code, out, _ = federation.server_command("operator", "list")
        self.assertIn("read-only", out)
        token = self.operator(federation, "eve", "viewer")
        self.assertRegex(token, r"^flo1\.[A-Za-z0-9_-]{43}$")
        for part in federation.state.glob("history.sqlite*"):
            self.assertNotIn(token.encode(), part.read_bytes())
        rows = json.loads(federation.server_command("operator", "list", "--json")[1])
        self.assertEqual([(row["name"], row["role"]) for row in rows], [("eve", "viewer")])
        self.assertEqual(set(rows[0]), {"name", "role", "made_at", "revoked_at"})
        for words, arguments in (
            ("there is an operator 'eve'", ("add", "eve", "--role", "admin")),
            ("letters, digits", ("add", "eve and bob", "--role", "admin")),
            ("--role", ("add", "bob")),
            ("give the operator's name", ("add",)),
            ("there is no operator 'bob'", ("revoke", "bob")),
        ):
            code, _, err = federation.server_command("operator", *arguments)
            self.assertEqual(code, 1, arguments)
            self.assertIn(words, err)
        self.assertEqual(federation.server_command("operator", "revoke", "eve")[0], 0)
        self.assertNotEqual(self.operator(federation, "eve", "admin"), token)
        rows = self.audit(federation, "operators")
        self.assertEqual(len(rows), 3)
        self.assertIn((f"{getpass.getuser()} at the command line", "", "'eve' is revoked"), rows)

    def test_each_role_may_do_what_it_is_for(self):
        federation, server = self.start()
        pages = {"nobody": Page(server), "forger": Page(server, "flo1." + "A" * 43)}
        for role in ("viewer", "operator", "admin"):
            pages[role] = Page(server, self.operator(federation, f"an-{role}", role))
        queue = ("queue", {"settings": {"rounds": 2, "codec": "qsgd:8"}})
        enroll = ("enroll", {"client": "c"})
        expected = {"nobody": (401, 401), "forger": (401, 401), "viewer": (403, 403)}
        expected.update(operator=(200, 403), admin=(200, 200))
        for name, page in pages.items():
            with self.subTest(name):
                got = tuple(page.act(*action)[0] for action in (queue, enroll))
                self.assertEqual(got, expected[name])
        sessions = {name: page.ask("GET", "/api/session")[1] for name, page in pages.items()}
        self.assertEqual(sessions["operator"]["name"], "an-operator")
        self.assertEqual(sessions["operator"]["role"], "operator")
        for name in ("nobody", "forger"):
            self.assertEqual((sessions[name]["name"], sessions[name]["role"]), ("", "viewer"))
        self.assertEqual(pages["nobody"].ask("GET", "/healthz")[0], 200, "no token was asked for")
        self.assertEqual(pages["admin"].ask("POST", "/healthz", {})[0], 405)
        runs = federation.query("SELECT rounds_total, state FROM run WHERE queued")
        self.assertEqual(runs, [(2, "waiting"), (2, "waiting")])
        done = self.audit(federation, "control")
        text = "makes a join token for the client, with the role that the name has"
        self.assertIn(("operator 'an-admin'", "c", text), done)
        who = [who for who, _, _ in done]
        self.assertEqual(who.count("operator 'an-operator'"), 1)
        self.assertNotIn("operator 'an-viewer'", who)
        refused = [(who, text[:20]) for who, _, text in self.audit(federation, "refusal")]
        for who in ("a stranger", "operator 'an-viewer'", "operator 'an-operator'"):
            self.assertIn((who, "'enroll' was refused"), refused)

    def test_runs_are_queued_dropped_and_ended(self):
        federation, server = self.start()
        page = Page(server, self.operator(federation, "eve", "operator"))
        clients = [federation.client(name, "--stay") for name in self.names]
        wait_until("rounds", lambda: federation.rounds_done() >= 3)
        run = federation.query("SELECT max(id) FROM run")[0][0]
        for settings, word in (
            ({"rouns": 2}, "rouns"),
            ({"rounds": "two"}, "rounds"),
            ({"rounds": 0}, "--rounds"),
            ({"initial_weights": "/etc/passwd"}, "queue such a run there"),
            ({}, "at least one setting"),
        ):
            code, answer = page.act("queue", {"settings": settings})
            self.assertEqual(code, 400, answer)
            self.assertIn(word, answer["error"])
        for name in ("first", "second"):
            code, answer = page.act("queue", {"settings": {"rounds": 2}})
            self.assertEqual((code, name), (200, name), answer)
        done = f"run {answer['run']} is removed: it had no model yet"
        self.assertEqual(page.act("drop", {"run": answer["key"]}), (200, {"run": answer["run"], "done": done}))
        self.assertEqual(page.act("drop", {"run": run})[0], 409)
        self.assertEqual(page.act("drop", {"run": "1; DROP TABLE run"})[0], 404)
        done = f"run {run} ends after the round that is under way"
        self.assertEqual(page.act("stop", {"run": str(run)}), (200, {"run": run, "done": done}))

        def states():
            return dict(federation.query("SELECT id, state FROM run"))

        wait_until("both runs are over", lambda: states()[run + 1] == "finished")
        self.assertEqual(states()[run], "finished")
        (why,) = federation.query("SELECT early_end FROM run WHERE id = ?", run)[0]
        self.assertEqual(why, "operator 'eve' has ended it")
        closed = federation.query("SELECT count(*) FROM round WHERE run_id = ?", run)[0][0]
        self.assertLess(closed, 100000)
        undecided = federation.query("SELECT count(*) FROM task WHERE state = 'offered'")[0][0]
        self.assertEqual(undecided, 0)
        code, answer = page.act("stop", {"run": run})
        self.assertEqual((code, answer["error"]), (409, f"run {run} is over"))
        self.assertTrue(any("failed" in text for _, _, text in self.audit(federation, "control")))
        for client in clients:
            client.kill()

    def test_a_run_is_ended_from_the_command_line_too(self):
        federation = self.make()
        server = federation.server("--new-run", *RUN, "--rounds", 100000)
        clients = [federation.client(name) for name in self.names]
        wait_until("rounds", lambda: federation.rounds_done() >= 3)
        self.assertEqual(federation.server_command("end-run", 99)[0], 1)
        code, out, err = federation.server_command("end-run", 2)
        self.assertEqual(code, 0, err)
        for program in [server, *clients]:
            self.expect_exit(program)
        self.assertIn("the command line has ended it", server.stderr())

    def test_a_run_that_waits_can_be_removed_and_the_next_one_begins(self):
        for name, done, state in (
            ("nobody is here", "is removed: it had no model yet", "stopped"),
            ("too few are here", "ends after the round that is under way", "finished"),
        ):
            with self.subTest(name):
                self.remove_the_head_of_the_queue(name, done, state)

    def remove_the_head_of_the_queue(self, name, done, state):
        federation = FederationTest.make(self, name)
        server = federation.server("--new-run", *RUN, "--min-clients", 9, "--stay")
        self.assertEqual(federation.server_command("queue", *RUN, "--rounds", 2)[0], 0)
        clients = []
        if state == "finished":
            clients = [federation.client(name, "--stay") for name in self.names]
            server.wait_for("waiting for 9 clients (2 are here)")
            _, out, _ = federation.server_command("history", "--events")
            self.assertIn("a is here", out, "the events of a run that has no round yet")
        follow = ("history", "--events", "--follow", "--json", "--run", 2)
        follower = federation.start("follower", [BIN / "fl-server", "--state", federation.state, *follow])
        key = federation.query("SELECT key FROM run WHERE id = 2")[0][0]
        code, out, err = federation.server_command("end-run", key)
        self.assertEqual((code, out), (0, f"run 2 {done}\n"), err)
        if not clients:
            clients = [federation.client(name, "--stay") for name in self.names]

        def states():
            return dict(federation.query("SELECT id, state FROM run WHERE id > 1"))

        wait_until("the next run's end", lambda: states() == {2: state, 3: "finished"})
        wait_until("the event", lambda: "at the command line" in follower.stdout())
        self.assertTrue(all(json.loads(line)["text"] for line in follower.stdout().splitlines()))
        follower.kill()
        for client in clients:
            self.assertTrue(client.running())
            client.signal(signal.SIGINT)
            self.expect_exit(client)
        server.signal(signal.SIGINT)
        self.expect_exit(server)

    def test_a_revoked_client_leaves_and_a_new_one_gets_in(self):
        federation, server = self.start()
        page = Page(server, self.operator(federation, "root", "admin"))
        clients = {name: federation.client(name) for name in self.names}
        wait_until("a round", lambda: federation.rounds_done() >= 1)
        code, answer = page.act("revoke", {"client": "b"})
        self.assertEqual(code, 200, answer)
        self.assertIn("'b' is revoked", answer["done"])
        self.expect_exit(clients["b"], 1)
        self.assertEqual(page.act("revoke", {"client": "nobody"})[0], 404)
        code, answer = page.act("enroll", {"client": "c", "role": "trainer", "expires_s": 600})
        self.assertEqual(code, 200, answer)
        self.assertFalse(answer["replaces"])
        joined = federation.command(
            "fl-client", "join", answer["token"], "--state", federation.folder / "c"
        )
        self.assertEqual(joined[0], 0, joined[2])
        self.assertNotIn(answer["token"], json.dumps(self.audit(federation, "control")))
        for body in ({}, {"client": 5}, {"client": "d", "role": "boss"}, {"client": "../d"},
                     {"client": "d", "expires_s": -1}, {"client": "d", "examples_max": -1}):
            self.assertEqual(page.act("enroll", body)[0], 400, body)

    def test_a_login_lasts_until_its_operator_is_revoked(self):
        federation, server = self.start()
        admin = Page(server, self.operator(federation, "root", "admin"))
        code, answer = admin.act("add-operator", {"name": "eve", "role": "operator"})
        self.assertEqual(code, 200, answer)
        code, who, cookie = Page(server).ask("POST", "/api/login", {"token": answer["token"]})
        self.assertEqual((code, who), (200, {"name": "eve", "role": "operator"}))
        for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
            self.assertIn(word, cookie)
        eve = Page(server, cookie=cookie.split(";")[0])
        queue = ("queue", {"settings": {"rounds": 2}})
        self.assertEqual(eve.act(*queue)[0], 200)
        self.assertEqual(admin.act("revoke-operator", {"name": "eve"})[0], 200)
        self.assertEqual(eve.act(*queue)[0], 401)
        # Another operator of that name does not bring the login back.
        code, answer = admin.act("add-operator", {"name": "eve", "role": "operator"})
        self.assertEqual(eve.act(*queue)[0], 401)
        cookie = Page(server).ask("POST", "/api/login", {"token": answer["token"]})[2]
        eve = Page(server, cookie=cookie.split(";")[0])
        self.assertEqual(eve.act(*queue)[0], 200)
        self.assertEqual(eve.ask("POST", "/api/logout", {})[0], 200)
        self.assertEqual(eve.act(*queue)[0], 401)

    def test_a_page_of_another_site_can_do_nothing(self):
        federation, server = self.start()
        token = self.operator(federation, "root", "admin")
        cookie = Page(server).ask("POST", "/api/login", {"token": token})[2].split(";")[0]
        page = Page(server, cookie=cookie)
        queue = ("queue", {"settings": {"rounds": 2}})
        ours = f"http://{page.address}"
        for headers, code in (
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": ours + ".evil.example"}, 403),
            ({"Sec_Fetch_Site": "cross-site"}, 403),
            ({"Sec_Fetch_Site": "same-site"}, 403),
            ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
            ({"Content_Type": "text/plain"}, 415),
            ({"Host": "evil.example"}, 421),
            ({"Origin": ours, "Sec_Fetch_Site": "same-origin"}, 200),
        ):
            with self.subTest(headers):
                self.assertEqual(page.act(*queue, **headers)[0], code)
        self.assertEqual(page.ask("GET", "/api/control/queue")[0], 405)
        self.assertEqual(page.act("launch", {})[0], 404)
        for body in ("", "[]", "{", '"x"'):
            self.assertEqual(page.act("queue", body)[0], 400)
        self.assertEqual(federation.query("SELECT count(*) FROM run WHERE queued"), [(1,)])
        self.assertEqual(page.act("queue", {"settings": {"codec": "x" * 17000}})[0], 413)

    def test_wrong_logins_are_counted_and_keep_nobody_out(self):
        federation, server = self.start()
        token = self.operator(federation, "root", "admin")
        page = Page(server)
        codes = [page.ask("POST", "/api/login", {"token": "guess"})[0] for _ in range(12)]
        self.assertEqual(codes, [401] * 10 + [429] * 2)
        self.assertEqual(page.ask("POST", "/api/login", {"token": token})[0], 200)
        # A script with its token goes on.
        self.assertEqual(Page(server, token).ask("GET", "/api/session")[1]["role"], "admin")
        refused = self.audit(federation, "refusal")
        self.assertIn(
            ("a stranger", "", "a login with a token of no operator, from 127.0.0.1"), refused
        )
        self.assertLessEqual(len(refused), 10)
        self.assertIn(
            ("operator 'root'", "", "logs in, from 127.0.0.1"), self.audit(federation, "login")
        )
        server.signal(signal.SIGTERM)
        self.expect_exit(server)

    def test_a_model_is_for_those_with_a_token(self):
        federation, server = self.start()
        token = self.operator(federation, "eve", "viewer")
        clients = [federation.client(name) for name in self.names]
        wait_until("a round", lambda: federation.rounds_done() >= 1)
        address = f"http://{server.ready['admin']}/api/model/file"
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address)
        self.assertEqual(refused.exception.code, 401)
        refused.exception.close()
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request) as answer:
            self.assertGreater(len(answer.read()), 4 * 2000)
        done = [(who, text[:24]) for who, _, text in self.audit(federation, "control")]
        self.assertIn(("operator 'eve'", "downloads run-2-version-"), done)
        # A round of two clients: its mean is not shown, as each could subtract its own.
        page = Page(server)
        wait_until("a round", lambda: page.ask("GET", "/api/series")[1]["rows"])
        answer = page.ask("GET", "/api/series")[1]
        loss = answer["columns"].index("train_loss")
        self.assertEqual({row[loss] for row in answer["rows"]}, {None})
        self.assertEqual({row["train_loss"] for row in page.ask("GET", "/api/rounds")[1]}, {None})
        for client in clients:
            client.kill()

    def test_commands_are_in_the_audit_with_their_user(self):
        federation, _ = self.start()
        who = f"{getpass.getuser()} at the command line"
        for command, row in (
            (("enroll", "--name", "x", "--role", "evaluator", "--max-examples", 5),
             "makes a join token for the client, with the role evaluator and at most 5 examples"),
            (("queue", "--rounds", 3), "queues a run with --rounds 3"),
            (("queue", "--drop", 3), "takes run 3 out of the queue"),
            (("backup", federation.folder / "copy"), f"makes a backup in {federation.folder / 'copy'}"),
        ):
            self.assertEqual(federation.server_command(*command)[0], 0, command)
            self.assertEqual(self.audit(federation, "control")[-1][::2], (who, row))
        self.assertEqual(federation.server_command("end-run", 99)[0], 1)
        self.assertIn("'end-run' failed: there is no run 99", self.audit(federation, "control")[-1][2])
        starts = [row for row in self.audit(federation, "control") if "starts the server" in row[2]]
        self.assertEqual(starts[-1][0], who)
        self.assertIn("starts the server with a new run, with --", starts[-1][2])


if __name__ == "__main__":
    unittest.main()
