# SPDX-License-Identifier: Apache-2.0
"""alone.py FOLDER JOBS: compiles files by themselves, without making code, with the commands of a
build in FOLDER. The names come from standard input; of a header it is the source file beside it.
Files that this build does not have are left out."""

import concurrent.futures
import json
import pathlib
import shlex
import subprocess
import sys


def command_of(entry):
    words = shlex.split(entry["command"])
    at = words.index("-o")
    return [word for word in words[:at] + words[at + 2 :] if word != "-c"] + ["-fsyntax-only"]


def compile_alone(entry):
    done = subprocess.run(command_of(entry), cwd=entry["directory"], text=True, stderr=subprocess.PIPE)
    return entry["file"], done.returncode, done.stderr


def main():
    folder, jobs = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    entries = {entry["file"]: entry for entry in json.loads((folder / "compile_commands.json").read_text())}
    sources = {str(pathlib.Path(name).absolute().with_suffix(".cpp")) for name in sys.stdin.read().split()}
    chosen = [entries[source] for source in sorted(sources) if source in entries]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for file, code, text in pool.map(compile_alone, chosen):
            if code != 0:
                failed += 1
                print(text, file=sys.stderr)
                print(f"{file} can't be compiled by itself", file=sys.stderr)
    print(f"{len(chosen)} files, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
