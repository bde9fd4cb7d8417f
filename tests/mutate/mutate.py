#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts small faults into the code, one at a time, and says which of them the tests notice.

    ./dev mutate                 every fault of faults.txt: hours
    ./dev mutate --only 3,17     these faults, by their numbers
    ./dev mutate --match TEXT    those whose file or effect has this text
    ./dev mutate --sample 10     ten faults, spread over the list
    ./dev mutate --linked …      against the programs of build/: half a minute for each fault, also of
                                 those that need libtorch
    ./dev mutate --list          says what there is, and runs nothing

A copy of the tree in build-mutate/ gets the faults; the tree itself is never changed. Each fault costs
the build of a few files. The check preset builds them: each file by itself, without optimization. The
tests that need libtorch have the lint preset, and the libtorch of the tree.
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from faults import LIST, read_faults
from linked import Linked

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build-mutate"
BUILD = COPY / "build-check"
TORCH_BUILD = COPY / "build-torch"
TORCH_PROGRAMS = {
    "site_hooks_test",
    "site_processes_test",
    "site_ranks_test",
    "site_shards_test",
    "torch_trainer_test",
}
TEST_SECONDS_MAX = 300
CAUGHT_PERCENT_MIN = 95


def copy_tree():
    """Brings the copy up to date. Files that did not change keep their times, for ninja."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    wanted = [Path(path) for path in os.fsdecode(listed).split("\0") if path]
    for path in wanted:
        if not (ROOT / path).is_file():
            continue
        source, target = (ROOT / path).read_bytes(), COPY / path
        if target.is_file() and target.read_bytes() == source:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source)
        shutil.copymode(ROOT / path, target)


def run(command, seconds=None, env=None):
    """Returns (exit status, output); the status is None if the time was over."""
    try:
        done = subprocess.run(
            command,
            cwd=COPY,
            env={**os.environ, **(env or {})},
            timeout=seconds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return None, "the time was over"
    return done.returncode, done.stdout


def folder_of(program):
    return TORCH_BUILD if program in TORCH_PROGRAMS else BUILD


def build(targets):
    """Returns the compiler's output if it failed, else None."""
    for folder in sorted({folder_of(target) for target in targets}):
        if not (folder / "build.ninja").exists():
            preset = "lint" if folder == TORCH_BUILD else "check"
            libtorch = f"-DFL_LIBTORCH={ROOT / 'build/libtorch'}"
            status, output = run(["cmake", "--preset", preset, "-B", str(folder), libtorch])
            if status != 0:
                sys.exit(output)
        jobs = os.environ.get("FL_MUTATE_JOBS", str(os.cpu_count() or 1))
        wanted = [target for target in targets if folder_of(target) == folder]
        status, output = run(["ninja", "-C", str(folder), "-j", jobs, *wanted])
        if status != 0:
            return output
    return None


def first_failure(output):
    """The test case that failed, where the output has one, else its last line: a crash, or no time left."""
    mark = "TEST CASE:"
    lines = output.strip().splitlines() or ["no output"]
    cases = [line.removeprefix(mark).strip() for line in lines if line.startswith(mark)]
    return cases[0] if cases else lines[-1]


def program_of(target):
    return folder_of(target) / "bin" / target


def fails(program, cases):
    """The output of these test cases if one fails or the time is over, else None."""
    # A comma would end the pattern.
    pattern = [f"-tc={cases.replace(',', '?')}"] if cases else []
    status, output = run([str(program), *pattern], TEST_SECONDS_MAX, {"FL_SIM_SEEDS": "50"})
    return None if status == 0 else output


def test(fault, program_of):
    """Runs the fault's tests. Returns None if all pass, else (the first that does not, its output)."""
    for target, cases in fault.tests:
        output = fails(program_of(target), cases)
        if output is not None:
            return f"{target}{' -tc=' + cases if cases else ''}", output
    return None


def try_fault(fault):
    """Puts the fault in, builds, tests, and takes it out. Returns (word, more about it)."""
    path = COPY / fault.path
    right = path.read_text()
    path.write_text(right.replace(fault.old, fault.new))
    try:
        output = build(fault.targets())
        if output is not None:
            return "no build", output
        failed = test(fault, program_of)
        if failed is None:
            return "missed", ""
        return "caught", f"by {failed[0]}: {first_failure(failed[1])}"
    finally:
        path.write_text(right)


def try_linked(linked, fault):
    word, more = linked.try_fault(fault, fails)
    if word == "caught":
        more = f"by {more[0]}: {first_failure(more[1])}"
    return word, more or ""


def without_faults(faults, build, program_of):
    """The tests must pass before a failure can mean anything."""
    if output := build(sorted({target for fault in faults for target in fault.targets()})):
        sys.exit(output)
    passed = set()
    for fault in faults:
        if (key := tuple(fault.tests)) in passed:
            continue
        passed.add(key)
        if failed := test(fault, program_of):
            sys.exit(f"{failed[0]} fails without any fault:\n{failed[1][-4000:]}")


def choose(faults, options):
    if options.only:
        numbers = {int(number) for number in options.only.split(",")}
        faults = [fault for fault in faults if fault.number in numbers]
    if options.match:
        faults = [f for f in faults if options.match in f.path or options.match in f.effect]
    if options.sample and options.sample < len(faults):
        faults = [faults[i * len(faults) // options.sample] for i in range(options.sample)]
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--match")
    parser.add_argument("--linked", action="store_true")
    parser.add_argument("--sample", type=int)
    options = parser.parse_args()
    faults = choose(read_faults((ROOT / LIST).read_text()), options)
    if not faults:
        sys.exit("no fault of the list was chosen")
    if options.list:
        for fault in faults:
            print(f"{fault.number:3} {fault.path}: {fault.effect}")
        return
    if options.linked:
        linked = Linked(ROOT)
        COPY.mkdir(exist_ok=True)  # The tests run there.
        without_faults(faults, linked.bring_up_to_date, linked.program_of)
        attempt = functools.partial(try_linked, linked)
    else:
        copy_tree()
        without_faults(faults, build, program_of)
        attempt = try_fault
    counts = {"caught": 0, "missed": 0, "no build": 0}
    argued = 0
    for fault in faults:
        began = time.monotonic()
        word, more = attempt(fault)
        counts[word] += 1
        is_argued = word == "missed" and fault.why_missed
        argued += bool(is_argued)
        if is_argued:
            more = "as expected: " + fault.why_missed
        print(f"{fault.number:3} {word} ({time.monotonic() - began:.0f} s) {fault.path}: {fault.effect}")
        print("    " + more.strip()[-2000:].replace("\n", "\n    "), flush=True)
    print(f"{counts['caught']} of {len(faults)} caught, {counts['missed']} missed ({argued} of them argued)")
    if counts["no build"]:
        sys.exit(f"{counts['no build']} do not compile: mend the list")
    if 100 * (counts["caught"] + argued) < CAUGHT_PERCENT_MIN * len(faults):
        sys.exit(1)


if __name__ == "__main__":
    main()
