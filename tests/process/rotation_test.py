# SPDX-License-Identifier: Apache-2.0
"""The certificate authority is changed for a new one, and members follow by themselves."""

import shutil
import unittest

from federation import FederationTest

RUN = ("--new-run", "--model", "synthetic:100", "--min-clients", 1, "--rounds", 1000000, "--stay")
KNOWS = "synthetic:100: 100 parameters"  # The client has been let in.


class Rotation(FederationTest):
    names = ("a", "b")

    def authorities(self, federation, name):
        text = (federation.folder / name / "identity" / "ca.pem").read_text()
        return text.count("BEGIN CERTIFICATE")

    def rotate(self, federation, *flags):
        return federation.server_command("rotate-ca", *flags)

    def restart(self, federation, *flags):
        if hasattr(self, "server"):
            self.server.kill()
        self.server = federation.server(*flags)

    def connect(self, federation, name, awaited):
        client = federation.client(name, "--stay")
        client.wait_for(awaited)
        client.wait_for(KNOWS)
        client.kill()
        return client.stderr()

    def test_members_renew_by_themselves(self):
        federation = self.make()
        self.restart(federation, *RUN)
        code, _, err = self.rotate(federation)
        self.assertEqual(code, 1)
        self.assertIn("another process uses", err)
        self.server.kill()
        code, out, err = self.rotate(federation)
        self.assertEqual(code, 0, err)
        self.assertIn("rotate-ca --finish", out)
        self.assertIn("already", self.rotate(federation)[2])

        self.restart(federation, *RUN)
        self.connect(federation, "a", "renewed this client's certificate")
        self.assertEqual(self.authorities(federation, "a"), 2)
        self.assertNotIn("renewed", self.connect(federation, "a", KNOWS))
        federation.join("c")
        self.assertEqual(self.authorities(federation, "c"), 2)

        self.server.kill()
        code, _, err = self.rotate(federation, "--finish")
        self.assertEqual(code, 0, err)
        self.restart(federation, *RUN)
        self.connect(federation, "a", "renewed this client's certificate")
        self.assertEqual(self.authorities(federation, "a"), 1)
        self.connect(federation, "c", "renewed this client's certificate")
        federation.join("d")
        # This one was away all the time.
        late = federation.client("b", "--stay")
        self.expect_exit(late, 1)
        self.assertIn("is not the federation's", late.stderr())
        # The client's old identity goes, and it joins anew.
        shutil.rmtree(federation.folder / "b" / "identity")
        federation.join("b")
        self.connect(federation, "b", KNOWS)

    def test_the_key_may_be_kept_offline(self):
        federation = self.make()
        self.restart(federation, *RUN)
        self.connect(federation, "a", KNOWS)
        self.server.kill()
        key = federation.state / "identity" / "ca.key"
        code, out, err = self.rotate(federation, "--intermediate")
        self.assertEqual(code, 0, err)
        self.assertIn(f"move {key}", out)
        offline = federation.folder / "offline.key"
        key.rename(offline)
        # Members renew, those who join need the token only, and the server starts without the key.
        self.restart(federation, *RUN)
        self.connect(federation, "a", "renewed this client's certificate")
        self.assertNotIn("renewed", self.connect(federation, "a", KNOWS))
        federation.join("c")
        self.connect(federation, "c", KNOWS)
        self.server.kill()
        code, _, err = self.rotate(federation, "--intermediate")
        self.assertEqual(code, 1)
        self.assertIn(f"{key} is missing", err)
        # A year later the key comes back for a moment.
        offline.rename(key)
        code, _, err = self.rotate(federation, "--intermediate")
        self.assertEqual(code, 0, err)
        key.rename(offline)
        self.restart(federation, *RUN)
        self.connect(federation, "c", "renewed this client's certificate")
        self.connect(federation, "b", "renewed this client's certificate")  # Was away until now.
        # The authority itself is changed; that takes no key.
        self.server.kill()
        for flags in ((), ("--finish",)):
            code, _, err = self.rotate(federation, *flags)
            self.assertEqual(code, 0, err)
            self.restart(federation, *RUN)
            self.connect(federation, "c", "renewed this client's certificate")
            self.server.kill()
        self.assertFalse((federation.state / "identity" / "ca-intermediate.pem").exists())

    def test_the_key_may_be_encrypted(self):
        federation = self.make()
        secret = federation.folder / "passphrase"
        secret.write_text("correct horse battery\n")
        secret.chmod(0o600)
        self.restart(federation, *RUN, "--ca-passphrase-file", secret)
        key = federation.state / "identity" / "ca.key"
        self.assertIn("ENCRYPTED", key.read_text())
        federation.join("c")  # A token needs no key.
        self.server.kill()
        server = federation.server(*RUN, ready=False)
        self.expect_exit(server, 1)
        self.assertIn("--ca-passphrase-file", server.stderr())
        code, _, err = self.rotate(federation, "--ca-passphrase-file", secret)
        self.assertEqual(code, 0, err)
        self.assertIn("ENCRYPTED", (federation.state / "identity" / "ca-next.key").read_text())


if __name__ == "__main__":
    unittest.main()
