# SPDX-License-Identifier: Apache-2.0
"""Faults without a copy of the tree: the file with a fault is compiled alone, with the flags that
build/ has for it, and linked before the libraries of build/, whose own definitions the linker then
leaves out. So a fault costs one file, where the others cost all that includes or joins it; of a
header, each source file that includes it itself. build/ is brought up to date before."""

import json
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

FIRST_ONES_COUNT = "-Wl,--allow-multiple-definition"
BODIES = "kernels/cuda/bodies/"  # Headers that tests run on a CPU, and of the product CUDA alone.


def includes(path, headers):
    return any(f'#include "{header}"' in path.read_text() for header in headers)


class Linked:
    def __init__(self, root):
        self.root, self.build = root, root / "build"
        commands = json.loads((self.build / "compile_commands.json").read_text())
        self.commands = {}
        for one in commands:
            path = Path(one["directory"], one["file"])
            joined = re.findall(r'#include "(.*\.cpp)"', path.read_text()) if "Unity" in one["file"] else []
            for source in joined or [path]:
                self.commands.setdefault(os.path.relpath(source, root), one)

    def sources_of(self, path, targets):
        """The source files to compile for a change of this file."""
        if path in self.commands:
            return [path]
        if path.startswith(BODIES):
            return [s for target in targets for s in self.tests_with(path, target)]
        line = f'#include "{path}"'
        return [
            source
            for source in self.commands
            if not source.startswith("tests/") and line in (self.root / source).read_text()
        ]

    def tests_with(self, path, target):
        """The sources of this test that include the header, themselves or by other headers."""
        headers, found = {path}, 0
        others = [*self.root.glob(f"{BODIES}*.hpp"), *self.root.glob("tests/kernels/*.hpp")]
        while found < len(headers):
            found = len(headers)
            headers |= {os.path.relpath(h, self.root) for h in others if includes(h, headers)}
        return [
            source
            for source, one in self.commands.items()
            if f"/{target}.dir/" in one["command"] and includes(self.root / source, headers)
        ]

    def program_of(self, target):
        return self.build / "bin" / target

    def bring_up_to_date(self, targets):
        """Returns the compiler's output if it failed, else None."""
        done = subprocess.run(
            ["ninja", "-C", self.build, *targets],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return done.stdout if done.returncode else None

    def try_fault(self, fault, fails):
        """`fails(program, cases)`: the output of tests that do, else None. Returns ("no build", the
        output), ("caught", (target, the output of its tests)) or ("missed", None)."""
        with tempfile.TemporaryDirectory() as folder:
            changed = Path(folder) / fault.path
            changed.parent.mkdir(parents=True)
            text = (self.root / fault.path).read_text()
            changed.write_text(text.replace(fault.old, fault.new))
            objects = []
            for source in self.sources_of(fault.path, [target for target, _ in fault.tests]):
                own = Path(folder) / source
                objects.append(f"{folder}/{len(objects)}.o")
                output = self.compile(own if own.exists() else self.root / source, folder, objects[-1])
                if output is not None:
                    return "no build", output
            for target, cases in fault.tests:
                program, output = self.link(target, objects, f"{target}-{fault.number}")
                if program is None:
                    return "no build", output
                failed = fails(program, cases)
                program.unlink()
                if failed is not None:
                    return "caught", (target, failed)
        return "missed", None

    def compile(self, source, folder, into):
        """Files of this folder go before those of the tree. Returns the output of a failure."""
        tree = folder if str(source).startswith(folder) else self.root
        one = self.commands[os.path.relpath(source, tree)]
        words = [w for w in shlex.split(one["command"]) if not w.endswith("ccache")]
        words[words.index("-o") + 1] = into
        words[words.index("-c") + 1] = str(source)
        words.insert(1, f"-I{folder}")
        done = subprocess.run(words, cwd=one["directory"], capture_output=True, text=True)
        return done.stderr if done.returncode else None

    def link(self, target, objects, name):
        """The test program with these objects first; beside the others, whose libraries it finds."""
        said = subprocess.run(
            ["ninja", "-C", self.build, "-t", "commands", f"bin/{target}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        last = said.stdout.strip().splitlines()[-1]
        own = re.search(r"\S+\.o\b", last).start()  # Where the test's own objects begin.
        last = f"{last[:own]}{' '.join(objects)} {FIRST_ONES_COUNT} {last[own:]}"
        done = subprocess.run(
            last.replace(f"-o bin/{target}", f"-o bin/{name}", 1),
            shell=True, cwd=self.build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return (self.build / "bin" / name if done.returncode == 0 else None), done.stdout
