#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the machine code of the CUDA kernels, for what makes them slow and no result shows: registers
that spill, narrow accesses, and loads in a loop whose every step waits for the one before. It needs
cuobjdump and nvdisasm and no GPU.

    sass_test.py LIBRARY VENV ARCHITECTURES

VENV is a virtual environment with deploy/requirements-cuda.txt; the architectures are those of
CMAKE_CUDA_ARCHITECTURES."""

import collections
import pathlib
import re
import subprocess
import sys
import unittest

LIBRARY = pathlib.Path(sys.argv[1])
TOOLS = next(pathlib.Path(sys.argv[2]).glob("lib/python*/site-packages/nvidia/*/bin"))
ARCHITECTURES = [f"sm_{number}" for number in re.findall(r"\d+", sys.argv[3])]
STEPS_OF_TILE = 16  # rans_body.hpp: tile_symbols / lanes_max.

Instruction = collections.namedtuple("Instruction", "address text")


def read_kernels():
    """The instructions of each kernel, by its architecture and its mangled name."""
    dump = subprocess.run(
        [TOOLS / "cuobjdump", "-sass", LIBRARY],
        check=True, capture_output=True, text=True,
        env={"PATH": f"{TOOLS}:/usr/bin:/bin"},
    ).stdout  # fmt: skip
    kernels, architecture, code = {}, None, None
    for line in dump.splitlines():
        if found := re.search(r"arch = (sm_\d+)", line):
            architecture = found[1]
        elif found := re.search(r"Function : (\S+)", line):
            code = kernels.setdefault((architecture, found[1]), [])
        elif found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            code.append(Instruction(int(found[1], 16), found[2].strip()))
    return kernels


def loops(code):
    """The instructions from each target of a jump backwards to that jump."""
    for last in code:
        target = re.search(r"\bBRA(?:\.\S+)?\s.*?\b0x([0-9a-f]+)", last.text)
        if target and int(target[1], 16) < last.address:
            yield [i.text for i in code if int(target[1], 16) <= i.address <= last.address]


def count(texts, pattern):
    return sum(1 for text in texts if re.search(pattern, text))


class MachineCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kernels = read_kernels()

    def of(self, name):
        """The code of the kernels with this name in their own, for each architecture."""
        for architecture in ARCHITECTURES:
            found = [c for (a, n), c in self.kernels.items() if a == architecture and name in n]
            self.assertTrue(found, f"no {name} for {architecture}")
            for code in found:
                yield architecture, code

    def test_no_kernel_spills_registers_or_has_arrays_outside_of_them(self):
        self.assertGreater(len(self.kernels), 20 * len(ARCHITECTURES))
        for (architecture, name), code in self.kernels.items():
            with self.subTest(architecture=architecture, kernel=name):
                self.assertEqual(count([i.text for i in code], r"\b(LDL|STL)\b"), 0)

    def test_a_step_of_rans_waits_for_no_memory_but_shared(self):
        """A tile of 16 steps loads the next tile, a group of 16 symbols for each lane, and nothing else;
        code_kernel has classes besides. Both loops of its code are looked at."""
        for name, groups in (("13encode_kernel", 1), ("11code_kernel", 2)):
            for architecture, code in self.of(name):
                with self.subTest(architecture=architecture, kernel=name):
                    tiles = [l for l in loops(code) if count(l, r"\bVOTE") == STEPS_OF_TILE]
                    self.assertTrue(tiles, "no loop with the steps of a tile")
                    for tile in tiles:
                        loads = [t for t in tile if re.search(r"\bLDG?\.E", t)]
                        self.assertLessEqual(len(loads), groups, loads)
                        self.assertEqual(count(loads, r"\.128\b"), len(loads), loads)
                        self.assertLess(len(tile) / STEPS_OF_TILE, 36)

    def test_streams_are_gathered_16_bytes_at_a_time(self):
        for architecture, code in self.of("13gather_kernel"):
            with self.subTest(architecture=architecture):
                texts = [i.text for i in code]
                self.assertGreater(count(texts, r"\bLDG\.E\.128\b"), 0)
                self.assertGreater(count(texts, r"\bSTG\.E\.128\b"), 0)
                self.assertEqual(count(texts, r"\bSTG\.E\.U?(8|16)\b"), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
