# SPDX-License-Identifier: Apache-2.0
"""Site keys, member lists and members of masked runs, for the tests of them."""

import re
import subprocess

from federation import BIN

MASKED = ("--secure-aggregation", "on:step-seconds=5")


class MemberLists:
    """Part of a FederationTest."""

    def run_command(self, *arguments):
        return subprocess.run(
            [str(part) for part in arguments], capture_output=True, text=True, timeout=60
        )

    def make_key(self, path):
        made = self.run_command(BIN / "fl-client", "site-key", "--key", path)
        self.assertEqual(made.returncode, 0, made.stderr)
        return re.search(r"\b[0-9a-f]{64}\b", made.stdout)[0]

    def sign(self, path, text):
        path.write_text(text)
        key = self.folder_of_signer / "anna.key"
        signed = self.run_command(BIN / "fl-server", "members", "sign", path, "--key", key)
        self.assertEqual(signed.returncode, 0, signed.stderr)

    def make_members(self, federation, epoch="epoch 1", names=None):
        """Site keys, and a signed list of these members: of the test's, unless `names` says others."""
        names = names or self.names
        self.folder_of_signer = federation.folder
        if not (federation.folder / "anna.key").exists():
            self.signer = self.make_key(federation.folder / "anna.key")
            self.keys = {}
        for name in names:
            if name not in self.keys:
                self.keys[name] = self.make_key(federation.folder / f"{name}.key")
        lines = ["tributary-members 1", epoch, "smallest-cohort 3", "needs 1"]
        lines.append(f"signer anna {self.signer}")
        lines += [f"member {name} {self.keys[name]}" for name in names]
        path = federation.folder / f"members-{epoch.split()[1]}.txt"
        self.sign(path, "\n".join(lines) + "\n")
        return path

    def masked_client(self, federation, name, members, *flags, failpoint=""):
        site_key = federation.folder / f"{name}.key"
        return federation.client(
            name, "--members", members, "--site-key", site_key, *flags, failpoint=failpoint
        )
