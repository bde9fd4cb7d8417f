# SPDX-License-Identifier: Apache-2.0
"""The dashboard's control view in a headless Chromium: who sees it, that it asks before it acts, and
what it does. Without Chromium (apt-get install chromium) there is nothing to test with."""

import json
import re
import unittest

from chromium import find_browser
from dashboard_pages import Pages
from federation import wait_until
from operators_test import Page

RUN = ("--model", "synthetic:2000", "--min-clients", 2, "--rounds", 100000)


@unittest.skipUnless(find_browser(), "there is no Chromium: apt-get install chromium")
class ControlPage(Pages):
    names = ("a", "b")

    def operator(self, name, role):
        code, out, err = self.federation.server_command("operator", "add", name, "--role", role)
        self.assertEqual(code, 0, err)
        return out.strip()

    def start(self):
        self.federation = self.make()
        self.server = self.federation.server(
            "--new-run", *RUN, "--stay", "--admin", "127.0.0.1:0"
        )
        self.page = self.browser()
        self.page.open(f"http://{self.server.ready['admin']}/")

    def await_text(self, words):
        self.page.wait_for(words, f"document.body.innerText.includes({json.dumps(words)})")

    def log_in(self, token):
        self.page.wait_for("the button", "document.querySelector('#account button') !== null")
        self.page.run("document.querySelector('#account button').click()")
        self.page.wait_for("the form", "document.querySelector('#token') !== null")
        self.page.run(f"document.querySelector('#token').value = {json.dumps(token)};"
                         "document.querySelector('form.login button').click()")
        self.page.wait_for("the views", "document.querySelector('#view-overview') !== null")

    def submit(self, action, **values):
        form = f"document.querySelector('form[data-action={action}]')"
        for name, value in values.items():
            field = f"{form}.querySelector('[name={name}]')"
            # The settings, and the runs to choose from, come from the server.
            self.page.wait_for(
                f"{name} {value}",
                f"{field} !== null && ({field}.value = {json.dumps(value)}) === {field}.value",
            )
        self.page.run(f"{form}.requestSubmit()")
        self.page.wait_for("the question", "document.querySelector('dialog[open]') !== null")

    def answer(self, word):
        self.page.run(f"document.querySelector('dialog [data-answer={word}]').click()")
        self.page.wait_for("no question", "document.querySelector('dialog') === null")

    def act(self, action, **values):
        """Says no first, and then yes."""
        self.submit(action, **values)
        self.answer("no")
        self.await_told(action, "Nothing was done.")
        self.submit(action, **values)
        self.answer("yes")

    def await_told(self, action, words, error=False):
        """Waits for this answer below the form."""
        state = f"document.querySelector('form[data-action={action}] [role=status]')"
        self.page.wait_for(words, f"{state}.textContent.includes({json.dumps(words)})")
        self.assertEqual(self.page.run(f"{state}.className"), "level-error" if error else "")

    def enter_as_admin(self):
        self.log_in(self.operator("root", "admin"))
        self.await_text("root (admin)")
        self.show(self.page, "control")

    def queued(self):
        return self.federation.query("SELECT rounds_total FROM run WHERE queued")

    def test_an_admin_queues_a_run_invites_and_ends(self):
        self.start()
        clients = [self.federation.client(name, "--stay") for name in self.names]
        wait_until("rounds", lambda: self.federation.rounds_done() >= 2)
        self.enter_as_admin()
        self.submit("queue", rounds="7", codec="qsgd:8")
        self.answer("no")
        self.await_text("Nothing was done.")
        self.assertEqual(self.queued(), [])
        self.submit("queue", rounds="7", codec="qsgd:8")
        self.answer("yes")
        self.await_text("is queued.")
        self.assertEqual(self.queued(), [(7,)])
        self.submit("queue", rounds="7", codec="<b>zip</b>")
        self.answer("yes")
        self.await_text("<b>zip</b>")
        # Wrong values are told as the command line tells them.
        for setting, value in (("rounds", "seven"), ("lr", "0"), ("momentum", "1e"), ("optimizer", "adan")):
            flag = f"--{setting}"
            code, _, err = self.federation.server_command("queue", flag, value)
            self.assertNotEqual(code, 0)
            self.submit("queue", rounds="7", codec="none", momentum="", lr="", optimizer="")
            self.answer("no")
            self.submit("queue", **{setting: value})
            self.answer("yes")
            said = err.strip().splitlines()[0].removeprefix("error: ").removeprefix("fl-server: ")
            self.await_told("queue", said, error=True)
        self.assertEqual(self.queued(), [(7,)])
        self.submit("enroll", client="c")
        self.answer("yes")
        self.await_text("flj1.")
        run = self.federation.query("SELECT max(id) FROM run WHERE NOT queued")[0][0]
        self.submit("stop", run=str(run))
        self.answer("yes")
        state = "SELECT state FROM run WHERE id = ?"
        wait_until("its end", lambda: self.federation.query(state, run) == [("finished",)])
        for client in clients:
            client.kill()

    def test_each_setting_that_the_command_line_takes_is_in_the_form(self):
        self.start()
        self.enter_as_admin()
        form = "document.querySelector('form[data-action=queue]')"
        self.page.wait_for("the settings", f"{form}.querySelector('[name=rounds]') !== null")
        flags = self.page.run(f"[...{form}.querySelectorAll('label')].map((each) => each.textContent)")
        _, told, _ = self.federation.server_command("--help")
        section = told.split("The run (stored with it")[1]
        section = re.split(r"\n[A-Z]", section.split("\n", 1)[1])[0]
        expected = set(re.findall(r"^ +(--[a-z-]+)", section, re.M)) - {"--initial-weights"}
        self.assertGreater(len(expected), 30)
        self.assertEqual((set(flags), len(flags)), (expected, len(expected)))
        # The usual ones are there at once, and the others under headings.
        shown = self.page.run(
            f"[...{form}.querySelectorAll('input')].filter((each) => each.checkVisibility()).map((each) => each.name)"
        )
        self.assertIn("rounds", shown)
        self.assertLess(len(shown), 12)
        note = f"{form}.querySelector('[name=rounds]').parentElement.querySelector('.note').textContent"
        self.assertEqual(
            self.page.run(note), "How many rounds the run has. A number: 1 or more. Default: 10."
        )
        # A queued run has the model of the run before, unless it says otherwise.
        self.assertEqual(
            self.page.run(f"{form}.querySelector('[name=model]').placeholder"), "synthetic:2000"
        )
        self.submit("queue", rounds="5", local_steps="3", lr="1e-3", keep_updates="all", seed=str(2**64 - 1))
        self.await_text("--seed 18446744073709551615")
        self.answer("yes")
        self.await_told("queue", "is queued.")
        ((text,),) = self.federation.query("SELECT config_json FROM run WHERE queued")
        settings = json.loads(text)
        self.assertEqual((settings["local_steps"], settings["lr"]), (3, 0.001))
        self.assertEqual((settings["keep_updates"], settings["seed"]), ("all", 2**64 - 1))
        self.assertEqual(settings["model"], "synthetic:2000")
        # The new run can be chosen by its name.
        named = "[...document.querySelectorAll('form[data-action=drop] option')].map((each) => each.textContent)"
        run = self.federation.query("SELECT id FROM run WHERE queued")[0][0]
        name = f"run {run} · synthetic:2000 · fedavg · ecuq:4 · waiting"
        self.page.wait_for(name, f"{named}.includes({json.dumps(name)})")

    def test_an_admin_takes_a_run_a_client_and_an_operator_away(self):
        self.start()
        self.enter_as_admin()
        self.submit("queue", rounds="7", lr="0.25")
        self.answer("yes")
        self.await_told("queue", "is queued.")
        find = "SELECT id, json_extract(config_json, '$.lr') FROM run WHERE queued"
        ((run, rate),) = self.federation.query(find)
        self.assertEqual(rate, 0.25)
        self.act("drop", run=str(run))
        self.await_told("drop", f"run {run} is removed: it had no model yet")
        state = "SELECT state FROM run WHERE id = ?"
        self.assertEqual(self.federation.query(state, run), [("stopped",)])

        self.act("pardon", client="b")
        self.await_told("pardon", "'b' is pardoned")
        pardoned = "SELECT name FROM client WHERE pardoned_at IS NOT NULL"
        self.assertEqual(self.federation.query(pardoned), [("b",)])

        self.act("revoke", client="b")
        self.await_told("revoke", "b")
        revoked = "SELECT name FROM client WHERE revoked_at IS NOT NULL"
        self.assertEqual(self.federation.query(revoked), [("b",)])

        self.act("add-operator", name="eve", role="operator")
        self.await_told("add-operator", "The token of 'eve' is shown only now.")
        form = "document.querySelector('form[data-action=add-operator]')"
        token = self.page.run(f"{form}.querySelector('output').textContent")
        eve = Page(self.server, token)
        self.assertEqual(eve.ask("GET", "/api/session")[1]["role"], "operator")
        self.act("revoke-operator", name="eve")
        self.await_told("revoke-operator", "The operator 'eve' is revoked.")
        self.assertEqual(eve.act("drop", {"run": 1})[0], 401)
        self.submit("revoke-operator", name="mallory")
        self.answer("yes")
        self.await_told("revoke-operator", "mallory", error=True)

    def test_the_view_is_fit_for_keyboards_readers_phones_and_the_dark(self):
        self.start()
        self.enter_as_admin()
        self.look_at(self.page, ["control"])
        self.submit("queue", rounds="7")
        self.check_page(self.page, "a question, on a phone, in the dark")
        self.assertEqual(self.page.run("document.activeElement.dataset.answer"), "no")
        self.assertEqual(self.page.errors, [])

    def test_a_viewer_sees_no_control(self):
        self.start()
        self.log_in(self.operator("eve", "viewer"))
        self.await_text("eve (viewer)")
        views = "[...document.querySelectorAll('#views a')].map((each) => each.textContent)"
        self.assertNotIn("Control", self.page.run(views))


if __name__ == "__main__":
    unittest.main()
