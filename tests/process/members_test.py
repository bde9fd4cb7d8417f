# SPDX-License-Identifier: Apache-2.0
"""Site keys and member lists, as the people of a consortium make them."""

import os
import pathlib
import stat
import subprocess
import tempfile
import unittest

from federation import BIN


class Members(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *words):
        done = subprocess.run(
            [BIN / words[0], *words[1:]], cwd=self.folder, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout, done.stderr

    def key(self, name):
        code, out, err = self.run_program("fl-client", "site-key", "--key", f"{name}.key")
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"to compare on the telephone: ([0-9a-f]{4} ?){5}")
        return out.strip()

    def write_list(self, needs, signers, epoch="epoch 1"):
        lines = ["tributary-members 1", epoch, "smallest-cohort 3", f"needs {needs}"]
        lines += [f"signer {name} {self.key(name)}" for name in signers]
        lines += [f"member {name} {self.key(name)}" for name in ("north", "south", "east")]
        path = self.folder / "members"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o644)
        return path

    def members(self, *words):
        return self.run_program("fl-server", "members", *words)

    def test_a_site_key_is_made_once(self):
        first = self.key("site")
        self.assertRegex(first, "^[0-9a-f]{64}$")
        self.assertEqual(self.key("site"), first)
        self.assertEqual(stat.S_IMODE((self.folder / "site.key").stat().st_mode), 0o600)
        self.assertNotIn(first, (self.folder / "site.key").read_text())
        code, _, err = self.run_program("fl-client", "site-key", "--key", "no/such/folder")
        self.assertEqual(code, 1)
        self.assertIn("no/such/folder", err)

    def test_two_people_sign_a_list(self):
        path = self.write_list(2, ("ada", "bob"))
        code, _, err = self.members("check", "members")
        self.assertEqual(code, 1)
        self.assertIn("0 have signed, and 2 must", err)
        for name in ("ada", "bob"):
            code, out, err = self.members("sign", "members", "--key", f"{name}.key")
            self.assertEqual(code, 0, err)
            self.assertIn("signed the list ", out)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o644)
        code, out, err = self.members("check", "members")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("cohorts of 3 members at least", out)
        self.assertEqual(out.count("  signed\n"), 2)
        self.assertEqual(out.count("\nmember  "), 3)
        # Somebody changes it afterwards.
        path.write_text(path.read_text().replace("smallest-cohort 3", "smallest-cohort 3 # x"))
        self.assertEqual(self.members("check", "members")[0], 0)
        path.write_text(path.read_text().replace("member east", "member eest"))
        code, _, err = self.members("check", "members")
        self.assertEqual(code, 1)
        self.assertIn("the signature of 'ada' is not of this list", err)
        code, _, err = self.members("sign", "members", "--key", "north.key")
        self.assertEqual(code, 1)
        self.assertIn("none of the list's signers", err)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(
            [f"{name}.key" for name in ("ada", "bob", "north", "south", "east")] + ["members"]))  # fmt: skip

    def test_one_signer_is_warned_of_and_a_later_list_names_the_one_before(self):
        first = self.write_list(1, ("ada",))
        self.members("sign", "members", "--key", "ada.key")
        code, out, err = self.members("check", "members")
        self.assertEqual(code, 0)
        self.assertIn("Whoever runs the server must not be a signer", err)
        digest = out.split()[1]
        first.rename(self.folder / "before")
        self.write_list(1, ("ada",), f"epoch 2\nbefore {digest}")
        self.members("sign", "members", "--key", "ada.key")
        self.assertEqual(self.members("check", "members", "--before", "before")[0], 0)
        code, _, err = self.members("check", "before", "--before", "members")
        self.assertEqual(code, 1)
        self.assertIn("its epoch is 1, and the list before has 2", err)

    def test_wrong_words(self):
        self.write_list(1, ("ada",))
        for words, said in (
            (("sign", "members"), "'members sign' needs --key"),
            (("check", "members", "--key", "ada.key"), "--key is for 'members sign'"),
            (("check", "none"), "none"),
            (("sign", "members", "--key", "members"), "is not a key that 'fl-client site-key'"),
        ):
            code, _, err = self.members(*words)
            self.assertEqual(code, 1, words)
            self.assertIn(said, err)

    def test_a_client_shows_and_approves_lists_that_it_has(self):
        for words, code, said in (
            (("show",), 1, "fl-client-state has no member list: a client with --members keeps"),
            (("show", "--state", "here"), 1, "here has no member list"),
            (("show", "0" * 64), 1, "DIGEST is for 'members approve'"),
            (("approve",), 1, "'members approve' needs DIGEST"),
            (("approve", "0" * 64), 1, "no member list waits in fl-client-state"),
            (("forget",), 2, "show"),
        ):
            found, _, err = self.run_program("fl-client", "members", *words)
            self.assertEqual(found, code, words)
            self.assertIn(said, err)
        # The accepted list, and one that follows it.
        state = self.folder / "fl-client-state"
        state.mkdir()
        self.write_list(1, ("ada",)).rename(state / "members.txt")
        code, out, err = self.run_program("fl-client", "members", "show")
        self.assertEqual(code, 0, err)
        digest = out.split()[2]
        self.assertRegex(out, r"\Aaccepted list [0-9a-f]{64}\nepoch 1, cohorts of 3 members at least")
        self.assertRegex(out, r"\nmember +([0-9a-f]{4} ){5} +north\n")
        path = self.write_list(1, ("ada",), f"epoch 2\nbefore {digest}")
        path.write_text(path.read_text() + f"member west {self.key('west')}\n")
        self.assertEqual(self.members("sign", "members", "--key", "ada.key")[0], 0)
        path.rename(state / "members-proposed.txt")
        code, out, err = self.run_program("fl-client", "members", "show")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"\nadded member +([0-9a-f]{4} ){5} +west\n")
        approve = out.split("\nto accept it: fl-client ")[1].split()
        code, out, err = self.run_program("fl-client", *approve)
        self.assertEqual(code, 0, err)
        code, out, err = self.run_program("fl-client", "members", "show")
        self.assertIn("\nepoch 2, ", out)
        self.assertNotIn("proposed", out)

    def test_a_masked_run_needs_a_signed_list(self):
        def start(*flags):
            return self.run_program("fl-server", "--secure-aggregation", "on", *flags)

        self.write_list(1, ("ada",))
        for flags, said in (
            ((), "the server has no member list: give --members FILE"),
            (("--members", "none"), "--members: "),
            (("--members", "members"), "0 have signed, and 1 must"),
            (("--members", "ada.key"), "ada.key: line 1: a member list begins with"),
        ):
            code, _, err = start(*flags)
            self.assertEqual(code, 1, flags)
            self.assertIn(said, err)
        self.assertEqual(self.members("sign", "members", "--key", "ada.key")[0], 0)
        code, _, err = start("--members", "members", "--mode", "async")
        self.assertEqual(code, 1)
        self.assertIn("Whoever runs the server must not be a signer", err)
        self.assertIn("masked run: --codec lanes:8, --weights equal, --min-clients 3", err)
        self.assertIn("--mode async does not go with --secure-aggregation", err)
        self.assertFalse((self.folder / "fl-state").exists())

    def test_flags_of_a_client_about_masks_need_a_list(self):
        for flag in ("--site-key=k", "--min-cohort=4", "--allow-same-version"):
            code, _, err = self.run_program("fl-client", flag)
            self.assertEqual(code, 2)
            self.assertIn(f"{flag.partition('=')[0]} requires --members", err)
        self.write_list(1, ("ada",))

        def look(*flags):
            return self.run_program("fl-client", "doctor", "--members", "members", *flags)[1]

        self.assertIn("'fl-client site-key --key site.key'", look())
        self.assertRegex(look("--site-key", "north.key"), "site key +'north' of members: ")
        self.assertIn("no member of members has it", look("--site-key", "ada.key"))


if __name__ == "__main__":
    unittest.main()
