# SPDX-License-Identifier: Apache-2.0
"""The list of faults: reading it, and whether it still fits the code."""

import fnmatch
import re
from dataclasses import dataclass, field

LIST = "tests/mutate/faults.txt"


@dataclass
class Fault:
    number: int
    line: int  # In the list.
    path: str
    tests: list  # (program, pattern of test cases or "")
    effect: str = ""
    old: str = ""
    new: str = ""
    why_missed: str = ""
    lines: dict = field(default_factory=lambda: {"- ": [], "+ ": []})

    def targets(self):
        return sorted({target for target, _ in self.tests})


def read_tests(text):
    """`PROGRAM PATTERN; PROGRAM`: pairs of both; the pattern of a whole program is empty."""
    pairs = []
    for one in text.split(";"):
        target, _, cases = one.strip().partition(" ")
        pairs.append((target, cases.strip()))
    return pairs


def read_faults(text):
    """The faults in the list's order, numbered from 1. The list's head has the format."""
    faults = []
    for line_number, line in enumerate(text.splitlines(), 1):
        mark, said = line[:2], line[2:]
        if mark == "@ ":
            path, _, tests = said.partition(" | ")
            faults.append(Fault(len(faults) + 1, line_number, path.strip(), read_tests(tests)))
        elif mark == ": ":
            faults[-1].effect = said.strip()
        elif mark == "! ":
            faults[-1].why_missed = said.strip()
        elif mark in ("- ", "+ ") and faults:
            faults[-1].lines[mark].append(said)
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{LIST}:{line_number}: begins with none of @ : - + ! #")
    for fault in faults:
        fault.old = "\n".join(fault.lines["- "])
        fault.new = "\n".join(fault.lines["+ "])
    return faults


def check_faults(texts):
    """(line of the list, what is wrong) for each fault that does not fit the files any more."""
    programs = set()
    for path, text in texts.items():
        if path.startswith("tests/") and path.endswith("CMakeLists.txt"):
            programs.update(re.findall(r"fl_test\((\w+)", text))
    cases = [
        title
        for path, text in texts.items()
        if path.startswith("tests/") and path.endswith(".cpp")
        for title in re.findall(r'TEST_CASE\(\s*"((?:[^"\\]|\\.)*)"', text)
    ]
    for fault in read_faults(texts[LIST]):
        found = texts.get(fault.path, "").count(fault.old) if fault.old else 0
        if found != 1:
            yield fault.line, f"the old text occurs {found} times in {fault.path}, not once"
        if fault.old == fault.new or not fault.effect:
            yield fault.line, "write - OLD TEXT, + NEW TEXT and : EFFECT"
        for target, pattern in fault.tests:
            if target not in programs:
                yield fault.line, f"there is no test program {target}"
            if pattern and not fnmatch.filter(cases, pattern.replace("[", "[[]")):
                yield fault.line, f"no test case is called {pattern}"
