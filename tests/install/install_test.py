# SPDX-License-Identifier: Apache-2.0
"""Installs a build into a temporary folder, and uses it there as somebody else's project would."""

import os
import re
import shutil
import subprocess
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


def run(*command, **options):
    """What it prints. AssertionError, with all of that, when it fails."""
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

    def test_a_client_finds_its_library(self):
        if not (BUILD / "bin" / "libfl-torch.so").exists():
            self.skipTest("built without libtorch")
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


if __name__ == "__main__":
    unittest.main()
