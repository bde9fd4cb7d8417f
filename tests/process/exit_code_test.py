# SPDX-License-Identifier: Apache-2.0
"""The exit codes of all programs, as docs/guide/exit-codes.md lists them; and who gives up."""

import signal
import time
import unittest

from federation import FederationTest, SOURCE

RUN = ("--model", "synthetic:100", "--min-clients", 1, "--rounds", 1)


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
            (2, "fl-client", "join"),
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

    def test_a_second_signal_kills(self):
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
        for code in (0, 1, 2, 3):
            self.assertIn(f"\n| {code} |", text)


if __name__ == "__main__":
    unittest.main()
