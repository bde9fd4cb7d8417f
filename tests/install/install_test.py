# SPDX-License-Identifier: Apache-2.0
"""Installs a build into a temporary folder, and uses it there as somebody else's project would."""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD, SOURCE = Path(os.environ["FL_BUILD"]), Path(os.environ["FL_SOURCE"])

C_PROGRAM = """
#include <tributary/c_api.h>
#include <stdio.h>
int main(void) {
  printf("%s\\n", flc_names());
  return flc_version() == FLC_VERSION ? 0 : 1;
}
"""


# The packages that Tributary::codec needs and Tributary::client does not.
CODEC_PACKAGES = ("Threads", "OpenSSL", "Protobuf", "spdlog", "fmt", "nlohmann_json")


def run(*command, **options):
    """Returns the output. AssertionError, with all of it, when the command fails."""
    command = [str(word) for word in command]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="tributary-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)

    def test_the_programs_start(self):
        for program in "fl-server", "fl-client", "fl-sim":
            said = run(self.prefix / "bin" / program, "--version")
            self.assertRegex(said, rf"\A{program} \d+\.\d+\.\d+.*, protocol \d+\n\Z")

    def test_the_pages_that_messages_name_are_there(self):
        for program in "fl-server", "fl-client", "fl-sim":
            said = run(self.prefix / "bin" / program, "--help")
            (folder,) = re.findall(r"Pages named docs/\.\.\. are in\s+(.*)\.$", said.rstrip())
            self.assertEqual(Path(folder), self.prefix / "share/doc/tributary")
            pages = {"docs/guide/networks.md", *re.findall(r"docs/[\w/-]+\.md", said)}
            for page in pages:
                self.assertTrue((Path(folder) / page).is_file(), page)

    def test_a_client_finds_its_library(self):
        if not (BUILD / "bin" / "libfl-torch.so").exists():
            self.skipTest("built without libtorch")
        rank = self.prefix / "bin" / "fl-rank"  # A site's ranks, which also use libtorch.
        self.assertRegex(run(rank, "--version"), r"\Afl-rank \d+\.\d+\.\d+")
        library = self.prefix / "bin" / "libfl-torch.so"
        self.assertNotIn("not found", run("ldd", library))

    def test_a_project_finds_the_package_and_links_the_codecs(self):
        build = self.folder / "codec"
        run(
            "cmake", "-G", "Ninja", "-S", SOURCE / "examples" / "codec", "-B", build,
            f"-DCMAKE_PREFIX_PATH={self.prefix}",
        )  # fmt: skip
        # The installed headers, and none of the source tree's.
        commands = run("ninja", "-C", build, "-t", "commands")
        self.assertNotRegex(commands, rf"-I *{re.escape(str(SOURCE))}")
        self.assertIn(str(self.prefix), commands)
        run("ninja", "-C", build)
        said = run(build / "codec-example")
        self.assertRegex(said, r"round 2: ecuq:2\+ef, 2\d+ bytes, [12]\.\d+ bits a value")

    def test_a_c_program_links_the_library(self):
        (library,) = self.prefix.glob("lib*/**/libfl-codec.so")
        (self.folder / "names.c").write_text(C_PROGRAM)
        run(
            "gcc", "-Wall", "-Werror", f"-I{self.prefix}/include", self.folder / "names.c", library,
            f"-Wl,-rpath,{library.parent}", "-o", self.folder / "names",
        )  # fmt: skip
        self.assertIn("ecuq", run(self.folder / "names"))

    def test_a_project_with_a_trainer_of_its_own_takes_part_in_a_run(self):
        client = self.build_custom_trainer()
        # The helper takes the programs of FL_BIN.
        os.environ["FL_BIN"] = str(self.prefix / "bin")
        sys.path.insert(0, str(SOURCE / "tests" / "process"))
        import federation as helper

        federation = helper.Federation(self.folder / "federation")
        self.addCleanup(federation.close)
        tables = {name: self.folder / f"{name}.csv" for name in "ab"}
        for number, (name, path) in enumerate(tables.items()):
            draw = random.Random(number)
            with path.open("w") as file:
                for _ in range(500):
                    x = [draw.gauss(number, 1), draw.gauss(0, 1)]
                    print(*x, 3 + 2 * x[0] - x[1] + draw.gauss(0, 0.1), sep=",", file=file)
        weights = self.folder / "linear.safetensors"
        run(client, "--data", tables["a"], "initial-weights", weights)
        server = federation.server(
            *("--model", "custom:linear", "--initial-weights", weights, "--codec", "ecuq:2+ef"),
            *("--min-clients", 2, "--rounds", 12, "--lr", 0.1, "--proximal-mu", 0.001),
        )
        clients = [
            federation.start(
                f"client-{name}",
                [client, "--state", self.folder / name, "--data", path]
                + ["--join", federation.token(name)],
            )
            for name, path in tables.items()
        ]
        for program in [server, *clients]:
            self.assertEqual(program.wait(), 0, str(program))
        tasks = federation.query("SELECT client, codec, state, count(*) FROM task GROUP BY client")
        self.assertEqual(tasks, [(name, "ecuq:2+ef", "accepted", 12) for name in "ab"])
        losses = [loss for (loss,) in federation.query("SELECT train_loss FROM round_summary")]
        self.assertLess(losses[-1], losses[0] / 20, losses)
        errors = federation.query(
            "SELECT value FROM metric WHERE name = 'mae' AND version = 12 ORDER BY client"
        )
        self.assertEqual(len(errors), 2)
        # The noise alone makes a mean error of 0.08.
        self.assertLess(max(errors)[0], 0.15, errors)

    def test_a_trainer_of_ones_own_has_the_flags_that_make_sense(self):
        client = self.build_custom_trainer()
        self.assertRegex(run(client, "--version"), r"\Alinear-client \d+\.\d+\.\d+.*, protocol \d+")
        said = run(client, "--help")
        for flag in "--data", "--join", "--stay", "--state", "--config", "--max-parameters":
            self.assertRegex(said, rf"(?m)^ +{flag}\b")
        for flag in "--partition", "--device", "--trainer", "--hogwild", "--shard":
            self.assertNotIn(flag, said)
        for flags, code, reason in (
            (["--partition", "iid"], 2, "--partition"),
            (["initial-weights", "x"], 1, "name a file by --data FILE"),
            (["--state", self.folder / "none"], 1, "with 'linear-client --join-file FILE ...'"),
        ):
            command = [str(word) for word in (client, *flags)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(reason, done.stderr)

    def test_a_trainer_of_ones_own_sees_no_library_inside_of_the_clients(self):
        (library,) = self.prefix.glob("lib*/**/libfl-client.so")
        names = run("nm", "-DC", "--defined-only", library)
        shown = [line.split(None, 2)[2] for line in names.splitlines()]
        self.assertEqual([name for name in shown if not name.startswith("fl::")], [])
        self.assertIn("fl::client_main(int, char**, fl::ClientProgram)", shown)

    def build_custom_trainer(self):
        """The built example. It must find none of the packages that only the codecs need."""
        build = self.folder / "custom-trainer"
        if not build.exists():
            run(
                "cmake", "-G", "Ninja", "-S", SOURCE / "examples" / "custom-trainer", "-B", build,
                f"-DCMAKE_PREFIX_PATH={self.prefix}",
                *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in CODEC_PACKAGES),
            )  # fmt: skip
            commands = run("ninja", "-C", build, "-t", "commands")
            self.assertNotRegex(commands, rf"-I *{re.escape(str(SOURCE))}")
            run("ninja", "-C", build)
        return build / "linear-client"


if __name__ == "__main__":
    unittest.main()
