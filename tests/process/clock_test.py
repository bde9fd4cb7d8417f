# SPDX-License-Identifier: Apache-2.0
"""Wall clocks that are wrong, or jump: connections come back by themselves once they are right."""

import contextlib
import os
import unittest

from federation import BIN, FederationTest, wait_until

DAY = 24 * 3600
RUN = ("--new-run", "--model", "synthetic:100", "--min-clients", 1, "--rounds", 1, "--stay")


@unittest.skipIf(os.environ.get("FL_SANITIZE"), "the sanitizers want to be preloaded first")
class Clocks(FederationTest):
    names = ("a",)

    @contextlib.contextmanager
    def shifted(self, federation, who, days):
        """Programs that are started inside have a clock of their own. Yields the file in which its
        shift can be changed."""
        place = federation.folder / f"clock-{who}"
        place.write_text(str(days * DAY))
        ours = {"LD_PRELOAD": str(BIN / "libfl-clock-shift.so"), "FL_CLOCK_SHIFT": str(place)}
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            yield place
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def test_a_server_whose_clock_goes_back_makes_a_new_certificate_at_once(self):
        federation = self.make()
        with self.shifted(federation, "server", 200) as clock:
            federation.server(*RUN)
        client = federation.client("a", "--stay")
        client.wait_for("trying again")
        self.assertIn("This machine's clock says", client.stderr())
        self.assertIn("set the one that is wrong", client.stderr())
        clock.write_text("0")
        client.wait_for("synthetic:100: 100 parameters")
        self.assertTrue(client.running())

    def test_a_client_whose_clock_is_wrong_waits_until_it_is_right(self):
        federation = self.make()
        federation.server(*RUN)
        for days in (-400, 200):
            with self.subTest(days=days):
                with self.shifted(federation, "a", days) as clock:
                    client = federation.client("a", "--stay")
                client.wait_for("set the one that is wrong")
                clock.write_text("0")
                client.wait_for("synthetic:100: 100 parameters")
                client.kill()

    def test_joining_names_both_clocks(self):
        federation = self.make()
        federation.server(*RUN)
        token = federation.token("b")
        with self.shifted(federation, "b", -400):
            code, _, err = federation.command(
                "fl-client", "join", token, "--state", federation.folder / "b"
            )
        self.assertEqual(code, 1)
        self.assertIn("This machine's clock says", err)
        self.assertIn("set the one that is wrong", err)

    def test_a_certificate_that_has_expired_is_named_when_the_clocks_agree(self):
        federation = self.make()
        with self.shifted(federation, "all", 100):
            federation.server(*RUN)
            client = federation.client("a", "--stay")
        client.wait_for("join again with a new token")
        wait_until("it goes on", lambda: client.stderr().count("trying again") >= 1)
        self.assertTrue(client.running())


if __name__ == "__main__":
    unittest.main()
