# SPDX-License-Identifier: Apache-2.0
"""The dashboard's control view in a headless Chromium: who sees it, that it asks before it acts, and
what it does. Without Chromium (apt-get install chromium) there is nothing to test with."""

import json
import pathlib
import unittest

from chromium import Browser, find_browser
from federation import FederationTest, wait_until

CHECKS = pathlib.Path(__file__).with_name("page_checks.js").read_text()
RUN = ("--model", "synthetic:2000", "--min-clients", 2, "--rounds", 100000)


@unittest.skipUnless(find_browser(), "there is no Chromium: apt-get install chromium")
class ControlPage(FederationTest):
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
        self.browser = Browser(find_browser())
        self.addCleanup(self.browser.close)
        self.browser.show(1280, 900)
        self.browser.open(f"http://{self.server.ready['admin']}/")

    def await_text(self, words):
        self.browser.wait_for(words, f"document.body.innerText.includes({json.dumps(words)})")

    def log_in(self, token):
        self.browser.wait_for("the button", "document.querySelector('#account button') !== null")
        self.browser.run("document.querySelector('#account button').click()")
        self.browser.wait_for("the form", "document.querySelector('#token') !== null")
        self.browser.run(f"document.querySelector('#token').value = {json.dumps(token)};"
                         "document.querySelector('form.login button').click()")
        self.browser.wait_for("the views", "document.querySelector('#view-overview') !== null")

    def submit(self, action, **values):
        form = f"document.querySelector('form[data-action={action}]')"
        for name, value in values.items():
            self.browser.run(f"{form}.querySelector('[name={name}]').value = {json.dumps(value)}")
        self.browser.run(f"{form}.requestSubmit()")
        self.browser.wait_for("the question", "document.querySelector('dialog[open]') !== null")

    def answer(self, word):
        self.browser.run(f"document.querySelector('dialog [data-answer={word}]').click()")
        self.browser.wait_for("no question", "document.querySelector('dialog') === null")

    def queued(self):
        return self.federation.query("SELECT rounds_total FROM run WHERE queued")

    def test_an_admin_queues_a_run_invites_and_ends(self):
        self.start()
        clients = [self.federation.client(name, "--stay") for name in self.names]
        wait_until("rounds", lambda: self.federation.rounds_done() >= 2)
        self.log_in(self.operator("root", "admin"))
        self.await_text("root (admin)")
        self.browser.run("location.hash = 'control'")
        self.await_text("Queue a run")
        self.assertEqual(self.browser.run(f"({CHECKS})()"), [])
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

    def test_a_viewer_sees_no_control(self):
        self.start()
        self.log_in(self.operator("eve", "viewer"))
        self.await_text("eve (viewer)")
        views = "[...document.querySelectorAll('#views a')].map((each) => each.textContent)"
        self.assertNotIn("Control", self.browser.run(views))


if __name__ == "__main__":
    unittest.main()
