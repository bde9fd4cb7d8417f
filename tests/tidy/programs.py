"""What the programs say of themselves with --help, and docs/guide/flags.md, which is made of it."""

import re
import subprocess

from source import Finding

PROGRAMS = ("fl-server", "fl-client", "fl-sim")
DOCUMENT = "docs/guide/flags.md"
HEAD = """# Flags

All flags of the three programs, as their `--help` prints them. `./dev docs` writes this file:
do not edit it.
"""


def help_of(program, *words):
    said = subprocess.run([program, *words, "--help"], capture_output=True, text=True, timeout=60)
    if said.returncode != 0:
        raise AssertionError(f"{program} --help failed: {said.stderr}")
    return said.stdout


def sub_commands(text):
    """The sub-commands that a --help lists."""
    flags = re.MULTILINE | re.IGNORECASE
    listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", text + "\n", flags)
    return re.findall(r"^  (\S+)", listed[1], re.MULTILINE) if listed else []


def read_help(folder):
    """{program: {sub-command, "" for the program itself: its --help}}"""
    helps = {}
    for name in PROGRAMS:
        helps[name] = {}
        waiting = [()]
        while waiting:
            words = waiting.pop(0)
            text = helps[name][" ".join(words)] = help_of(folder / name, *words)
            # Those of a group stand behind it.
            waiting = [(*words, command) for command in sub_commands(text)] + waiting
    return helps


def flags_of(helps):
    """The same with each --help's flags instead. A sub-command takes the program's flags too."""
    return {
        name: {
            command: set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
            for command, text in commands.items()
        }
        for name, commands in helps.items()
    }


def dev_commands(usage):
    """The commands in what ./dev prints: "./dev asan|tsan [ARGUMENT…]" are two."""
    return {
        word
        for words in re.findall(r"^ *\./dev ([a-z|]+)", usage, re.MULTILINE)
        for word in words.split("|")
    }


def rows_of(text):
    """What a --help lists: [(section, [(flag with its default, what it does)])]. CLI11 puts what it
    does into a column of its own, on the next line if a flag reaches that column."""
    column, sections = 30, []
    lines = text.splitlines() + [""]
    for line, following in zip(lines, lines[1:]):
        if re.match(r"\S.*:$", line):
            sections.append((line[:-1], []))
        elif sections and line.startswith("  ") and not line.startswith(" " * column):
            is_long = following.startswith(" " * column)
            flag, what = (line, following) if is_long else (line[:column], line[column:])
            sections[-1][1].append((flag.strip(), what.strip()))
    return [(title, rows) for title, rows in sections if rows]


def as_markdown(helps):
    parts = [HEAD]
    for name, commands in helps.items():
        for command, text in commands.items():
            parts.append(f"### {name} {command}\n" if command else f"## {name}\n")
            about = re.split(r"^\S.*:$", text, maxsplit=1, flags=re.MULTILINE)[0].strip()
            parts.append(f"```text\n{about}\n```\n")
            for title, rows in rows_of(text):
                cells = [
                    (flag.replace("|", "\\|"), what.replace("|", "\\|")) for flag, what in rows
                ]
                lines = [f"| `{flag}` | {what} |" for flag, what in cells]
                parts.append("\n".join([f"| {title} | |", "|---|---|", *lines]) + "\n")
    return "\n".join(parts)


ROW = re.compile(r"^\| `(?P<flag>.*?)` \| (?P<what>.*) \|$", re.MULTILINE)


def facts(document):
    """What the reference says of each program: each flag's name, default and help. CLI11's releases
    write defaults, ranges and titles in different ways, which make no difference here."""
    found = []
    for part in re.split(r"^(?=##+ fl-)", document, flags=re.MULTILINE)[1:]:
        rows = set()
        for row in ROW.finditer(part):
            name = re.match(r"(?:-\w, *)?(--[\w-]+)|\S+", row["flag"])
            default = re.search(r"=(\S+)$| \[((?:(?! - )[^\]])*)\]$", row["flag"])
            value = (default[1] or default[2]) if default else ""
            rows.add((name[1] or name[0], value, row["what"]))
        found.append((part.splitlines()[0], rows))
    return found


def check_document(document, helps):
    if facts(document) == facts(as_markdown(helps)):
        return []
    return [Finding(DOCUMENT, 1, "is not what the programs say: run ./dev docs")]
