# SPDX-License-Identifier: Apache-2.0
"""Man pages and completions have every flag and sub-command of the programs, and work in the
shells. A tool that is missing (man, mandoc, zsh, fish) is named and skipped."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, BIN = Path(os.environ["FL_SOURCE"]), Path(os.environ["FL_BIN"])
sys.path.append(str(SOURCE / "tests" / "tidy"))

import programs

WORDS_IN_ZSH = r"""
zmodload zsh/zpty || exit 3
zpty z zsh -f -i
zpty -w z "PS1= PS2= fpath=($1 \$fpath); autoload -U compinit; compinit -u -D; setopt noautomenu"
zpty -w z "LISTMAX=10000; echo RE''ADY"
zpty -r -m z line '*READY*' || exit 4
zpty -n -w z "$2"$'\t\t'
sleep 2
while zpty -r -t z line 2> /dev/null; do print -r -- "$line"; done
zpty -d z
"""


def run(*command, **options):
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=60, **options
    )


class Reference(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="tributary-reference-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        done = run(sys.executable, SOURCE / "deploy" / "packages" / "reference.py", BIN, cls.folder)
        assert done.returncode == 0, done.stderr
        cls.flags = programs.flags_of(programs.read_help(BIN))

    def need(self, tool):
        if shutil.which(tool) is None:
            self.skipTest(f"{tool} IS MISSING, SO NOTHING WAS TRIED IN IT")

    def test_every_flag_and_sub_command_is_everywhere(self):
        for program, commands in self.flags.items():
            page = (self.folder / f"man1/{program}.1").read_text().replace("\\-", "-")
            parts = dict(
                (words.strip(), text)
                for words, text in re.findall(
                    rf"^\.SS {program}(.*)\n((?:(?!\.S[SH] ).*\n)*)", page, re.MULTILINE
                )
            )
            parts[""] = page.partition(".SH SUBCOMMANDS")[0]
            shells = {
                "bash": (self.folder / f"bash/{program}").read_text(),
                "zsh": (self.folder / f"zsh/_{program}").read_text(),
                "fish": (self.folder / f"fish/{program}.fish").read_text(),
            }
            self.assertEqual(set(parts), set(commands))
            for command, flags in commands.items():
                # A flag that only another one's help names is not of this command.
                for flag in flags & self.own_flags(program, command) - {"--help"}:
                    where = f"{program} {command}: {flag}"
                    self.assertRegex(parts[command], rf"\\fB{flag}\\fR", where)
                    self.assertRegex(shells["bash"], rf"{flag}[ |']", where)
                    self.assertRegex(shells["zsh"], rf"'{flag}\[", where)
                    self.assertRegex(shells["fish"], rf" -l {flag[2:]} ", where)

    def own_flags(self, program, command):
        text = programs.help_of(BIN / program, *command.split())
        rows = [flag for _, rows in programs.rows_of(text) for flag, _ in rows]
        found = {name for row in rows for name in re.findall(r"^(?:-\w,)?(--[\w-]+)", row)}
        self.assertIn("--help", found)
        return found

    def test_the_pages_are_clean(self):
        for program in self.flags:
            page = self.folder / f"man1/{program}.1"
            with self.subTest(program, tool="man"):
                self.need("man")
                done = run("man", "--warnings", "-l", page, env=os.environ | {"MANWIDTH": "80"})
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn("SEE ALSO", done.stdout)
            with self.subTest(program, tool="mandoc"):
                self.need("mandoc")
                done = run("mandoc", "-T", "lint", "-W", "warning", page)
                self.assertEqual((done.returncode, done.stdout), (0, ""))

    def bash(self, *words):
        """The words to which bash completes the last word."""
        script = (
            '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_${1//-/_}";'
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = run("bash", "-ec", script, "-", self.folder / "bash" / words[0], *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_completes(self):
        self.assertEqual(self.bash("fl-client", "--hogw"), ["--hogwild"])
        self.assertEqual(self.bash("fl-client", "--device", "cu"), ["cuda"])
        self.assertEqual(self.bash("fl-client", "--device", "=", "cp"), ["cpu"])
        self.assertEqual(self.bash("fl-server", "enr"), ["enroll"])
        self.assertEqual(self.bash("fl-server", "enroll", "--role", "eval"), ["evaluator"])
        self.assertEqual(self.bash("fl-server", "operator", "--role", "vi"), ["viewer"])
        self.assertEqual(self.bash("fl-client", "site", "doc"), ["doctor"])
        self.assertEqual(self.bash("fl-client", "site", "recommend", "--intr"), ["--intra"])
        # A value that reads like a sub-command is none.
        self.assertIn("enroll", self.bash("fl-server", "--state", "history", "enr"))
        self.assertEqual(self.bash("fl-server", "--nonsense"), [])
        (self.folder / "a file").write_text("")
        self.assertEqual(
            self.bash("fl-server", "--config", f"{self.folder}/a f"), f"{self.folder}/a file".split()
        )
        # As bash itself calls it.
        done = run(
            "bash", "-ic", f". {self.folder}/bash/fl-server; complete -p fl-server", env=os.environ
        )
        self.assertIn("complete -F _fl_server fl-server", done.stdout)

    def test_fish_completes(self):
        self.need("fish")

        def fish(line):
            script = f"source {self.folder}/fish/fl-client.fish; complete -C '{line}'"
            done = run("fish", "--no-config", "-c", script, env=os.environ | {"HOME": self.folder})
            self.assertEqual(done.returncode, 0, done.stderr)
            return [row.split("\t")[0] for row in done.stdout.splitlines()]

        self.assertEqual(fish("fl-client --hogw"), ["--hogwild"])
        self.assertEqual(sorted(fish("fl-client --device ")), ["auto", "cpu", "cuda"])
        self.assertEqual(sorted(fish("fl-client site ")), ["doctor", "recommend"])

    def test_zsh_completes(self):
        self.need("zsh")
        done = run(
            "zsh", "-fc", WORDS_IN_ZSH, "-", self.folder / "zsh", "fl-client --device ",
            env=os.environ | {"TERM": "dumb", "HOME": str(self.folder)},
        )  # fmt: skip
        if done.returncode in (3, 4):
            self.skipTest(f"ZSH HAS NO PSEUDO TERMINAL HERE: {done.stderr}")
        for word in ("cpu", "cuda", "auto"):
            self.assertRegex(done.stdout, rf"\b{word}\b", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
