# SPDX-License-Identifier: Apache-2.0
"""Somebody with a terminal who follows a document of docs/guide/ word for word.

Blocks of `sh` are typed into one shell, one after the other; blocks of `python` are programs whose
first line has their name. A block of `text` right behind a block of `sh` shows what that prints. A line
"…" there stands for any lines, "…" inside of a line for anything, and what is never the same twice
(times, sizes, digests, tokens) stands for others of its kind. Other blocks are for people only."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time

from federation import WAIT_MAX_S, programs, wait_until

BLOCK = re.compile(r"^(?:(#+ [^\n]*)\n|```([\w-]*)\n(.*?)^```$)", re.MULTILINE | re.DOTALL)
# Commands that people repeat until they see what they wait for.
LOOK = re.compile(
    r"(sudo )?(journalctl|systemctl is-active|curl|grep|tail|ls)\b|fed (history|clients|audit|operator list)\b"
    r"|site doctor\b"
)
LOOK_AGAIN_S = 0.2
# In this order: what comes first is taken for what it is.
VARYING = {
    "time": r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:?\d\d)?",
    "date": r"\d{4}-\d\d-\d\d",
    "join_token": r"flj1\.[\w-]+",
    "operator_token": r"flo1\.[\w-]+",
    "digest": r"\b[0-9a-f]{16,64}\b",
    "figure": r"\d+(?:\.\d+)? (?:B|kB|MB|GB|ms|s|bytes)\b",
    "decimal": r"\d+\.\d+(?:e[+-]\d+)?",
    "hour": r"\b\d\d:\d\d\b",
}
TOKENS = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in VARYING.items()))
ANY_LINES = "…"


class Block:
    """A block of a document. `shown`: what it prints, or None. `heading`: of its section."""

    def __init__(self, language, text, line, heading):
        self.language, self.text, self.line, self.heading = language, text, line, heading
        self.shown = None

    @property
    def only_looks(self):
        commands = [line for line in self.text.splitlines() if line.strip()]
        return all(LOOK.match(command) for command in commands)


def blocks_of(text):
    """The blocks of a document that are to be followed, in order."""
    blocks, heading, before = [], "", None
    for match in BLOCK.finditer(text):
        title, language, inner = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if title:
            heading = title.lstrip("# ")
        elif language == "text" and before is not None and before.language == "sh":
            before.shown = inner
        if language in ("sh", "python"):
            blocks.append(Block(language, inner, line, heading))
        before = blocks[-1] if language in ("sh", "python") else None
    return blocks


def line_pattern(shown):
    """The pattern of all lines that this line of a document stands for."""
    pattern, at = "", 0
    for match in TOKENS.finditer(shown):
        pattern += re.escape(shown[at : match.start()]) + VARYING[match.lastgroup]
        at = match.end()
    pattern += re.escape(shown[at:])
    # Columns are as wide as their widest cell.
    return re.compile(re.sub(r"(?:\\ )+", r"\\s+", pattern).replace(ANY_LINES, ".*"))


def difference(shown, said):
    """Says what is not as the document shows it, or "" if all is."""
    said = [line.strip() for line in said.rstrip().splitlines()]
    parts = [[]]
    for line in shown.rstrip().splitlines():
        if line.strip() == ANY_LINES:
            parts.append([])
        else:
            parts[-1].append(line.strip())

    def fits(part, at):
        return len(part) <= len(said) - at and all(
            line_pattern(line).fullmatch(found) for line, found in zip(part, said[at:])
        )

    at = 0
    for number, part in enumerate(parts):
        is_first, is_last = number == 0, number == len(parts) - 1
        places = range(at, len(said) - len(part) + 1)
        if is_first:
            places = [0]
        if is_last:
            end = len(said) - len(part)
            places = [end] if end >= at and (end == 0 or not is_first) else []
        found = next((place for place in places if fits(part, place)), None)
        if found is None:
            return "nowhere in this order:\n" + "\n".join(f"  {line}" for line in part)
        at = found + len(part)
    return ""


class Reader:
    """`tools`: programs of the reader's own, name to text of a script. `places`: what stands in the
    document for something else here, such as an address. `environment`: variables of the shell."""

    def __init__(self, folder, tools=(), places=(), environment=()):
        self.folder = pathlib.Path(folder)
        self.places = dict(places)
        self.own = self.folder / ".own"
        self.own.mkdir(parents=True)
        for name, text in dict(tools).items():
            (self.own / name).write_text(text)
            (self.own / name).chmod(0o755)
        self.out = (self.own / "out").open("wb")
        self.shell = subprocess.Popen(
            ["bash", "-eu"],
            cwd=folder,
            env={**os.environ, "PATH": f"{self.own}:{os.environ['PATH']}", **dict(environment)},
            stdin=subprocess.PIPE,
            stdout=self.out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # So that one signal ends all.
        )
        programs.add(self)
        self.typed = 0

    def running(self):
        return self.shell.poll() is None

    def __str__(self):
        return self.said()

    def here(self, text):
        """The document's text with this machine's places."""
        for name, place in self.places.items():
            text = text.replace(name, str(place))
        return text

    def type(self, text):
        """Returns what the commands print until they are done."""
        self.typed += 1
        done = self.own / f"done-{self.typed}"
        begin = (self.own / "out").stat().st_size
        self.shell.stdin.write(f"{text}\ntouch {done}\n")
        self.shell.stdin.flush()
        wait_until("the block is done", lambda: done.exists() or not self.running())
        said = (self.own / "out").read_bytes()[begin:].decode(errors="replace")
        if not done.exists():
            raise AssertionError(f"these commands failed:\n{text}\n{said}\n{self.said()}")
        return said

    def follow(self, block):
        """Does what the block says. Looks again, where it only looks, until it sees what the
        document shows."""
        text = self.here(block.text)
        if block.language == "python":
            name = re.match(r"# (\w+\.py)\n", text)[1]
            (self.folder / name).write_text(text)
            return
        if block.shown is None:
            self.type(text)
            return
        shown = self.here(block.shown)
        # A look that finds nothing yet is no failure.
        command = f"(\nset +e\n{text}\n) || true" if block.only_looks else text
        end = time.monotonic() + WAIT_MAX_S
        while True:
            said = self.type(command)
            wrong = difference(shown, said)
            if not wrong:
                return
            if not block.only_looks or time.monotonic() > end:
                raise AssertionError(
                    f"line {block.line}, '{block.heading}':\n{text}\nprinted\n{said}\nand has {wrong}"
                    f"\n{self.said()}"
                )
            time.sleep(LOOK_AGAIN_S)

    def said(self):
        """The end of all that the document's commands have written."""
        logs = [self.own / "out", *sorted(self.folder.glob("**/*log"))]
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.wait()
        self.shell.stdin.close()
        self.out.close()
