#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes man pages and shell completions from what the programs say with --help.

    deploy/packages/reference.py BIN OUT

BIN: the folder of the built programs. OUT gets man1/*.1, bash/*, zsh/_* and fish/*.fish. The build
calls it, and `cmake --install` installs what it has written. The reader of --help is the one of
docs/guide/flags.md: tests/tidy/programs.py."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "tidy"))

import programs

ABOUT = {
    "fl-server": "coordinate a federated training",
    "fl-client": "train on local data for a federation",
    "fl-sim": "simulate a federation on one machine",
}
FILES = {
    "fl-server": [
        ("/etc/tributary/server.toml", "The flags of the service fl-server."),
        ("/var/lib/tributary/server", "The state of the service fl-server: the history, the "
         "checkpoints, the spool and the identity of the federation."),
    ],
    "fl-client": [
        ("/etc/tributary/NAME.toml", "The flags of the service fl-client@NAME."),
        ("/var/lib/tributary/client-NAME", "Its state: key, certificate and unsent updates."),
    ],
}  # fmt: skip
SIGNALS = [
    ("SIGTERM, SIGINT", "Ask the program to end cleanly. The second one ends it at once; nothing "
     "that was acknowledged is lost."),
    ("SIGHUP", "Outside of a terminal: reads the flags again, with the file of --config as it is "
     "now. The log says what has changed and what only a restart changes."),
]  # fmt: skip
EXIT = [
    ("0", "The run is over, or the program was asked to end and did so cleanly."),
    ("1", "An error, which the last line of the log names."),
    ("2", "The command line, or the file of --config, is wrong."),
]


class Flag:
    """A row of a --help: the names, the form of the value, and a description."""

    def __init__(self, cell, what):
        match = re.match(r"((?:-\w, ?)?--[\w-]+)(.*)", cell)
        self.names, self.what = match[1].split(","), re.sub(r" +", " ", what)
        self.names = [name.strip() for name in self.names]
        # Text that CLI11 appends to the type: "REQUIRED", "Excludes: --x", ":FLOAT in [0 - 1]=0.5".
        rest = re.sub(r"(REQUIRED|(?:Excludes|Needs): .*)", "", match[2]).strip()
        self.is_required = "REQUIRED" in match[2]
        choices = re.search(r"\{([^}]*)\}", rest)
        self.choices = choices[1].split(",") if choices else []
        bounds = re.search(r"in \[([^\]]*)\]", rest)
        value = re.sub(r"^NAME=VALUE|in \[[^\]]*\]", "", rest)
        default = re.search(r"=([^\]= ]+)$|\[([^\]]*)\]$", value)
        self.default = (default[1] or default[2]) if default else ""
        self.bounds = bounds[1].replace(" - ", " to ") if bounds else ""
        kind = re.match(r"NAME=VALUE|K/N|HOST:PORT|:?[A-Z]+", rest)
        self.kind = kind[0].strip(":") if kind else ""

    @property
    def long(self):
        return self.names[-1]

    @property
    def takes_value(self):
        return bool(self.kind)


class Command:
    """One --help: of a program, or of a sub-command by its words."""

    def __init__(self, words, text):
        self.words = words
        about = re.split(r"^\S.*:$", text, maxsplit=1, flags=re.MULTILINE)[0]
        about, _, usage = about.partition("Usage: ")
        self.about, self.usage = about.rstrip().splitlines(), usage.split("\n")[0].strip()
        rows = [row for _, rows in programs.rows_of(text) for row in rows]
        self.flags = [Flag(*row) for row in rows if row[0].startswith("-")]
        self.commands = programs.sub_commands(text)
        self.positional = [row for row in rows if re.match(r"[A-Z]", row[0])]


def read(folder):
    """{program: [its Command, then those of its sub-commands]}"""
    helps = programs.read_help(folder)
    return {
        name: [Command(words.split(), text) for words, text in commands.items()]
        for name, commands in helps.items()
    }


# Man pages. ------------------------------------------------------------------------------------------


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("…", "...")
    return re.sub(r"^\.", r"\\&.", text)


def paragraph(text):
    """Text in lines of one sentence or less than 100 characters, as mandoc likes it."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > 90:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [roff(line) for line in [*lines, line] if line]


def term(head, text):
    return [".TP", head, *paragraph(text)]


def flag_lines(flag):
    names = ", ".join(f"\\fB{roff(name)}\\fR" for name in flag.names)
    value = "|".join(flag.choices) if flag.choices else flag.kind
    facts = [f"from {flag.bounds}"] if flag.bounds else []
    facts += [f"default {flag.default}"] if flag.default else []
    facts += ["required"] if flag.is_required else []
    head = names + (f" \\fI{roff(value)}\\fR" if value else "")
    text = flag.what + (f" ({'; '.join(facts)})" if facts else "")
    return term(head, text)


def about_lines(lines):
    """Indented lines are examples."""
    done = []
    for line in lines:
        if line.startswith("  "):
            done += [".PP", ".nf", ".RS", roff(line.strip()), ".RE", ".fi"]
        else:
            done += [".PP"] * bool(done) + paragraph(line)
    return done


def man_page(name, commands, version, date):
    own = commands[0]
    lines = [
        f'.TH {name.upper()} 1 "{date}" "tributary {version}" "Tributary"',
        ".SH NAME",
        f"{roff(name)} \\- {ABOUT[name]}",
        ".SH SYNOPSIS",
        f".B {roff(name)}",
        ".I [OPTIONS]" + (" [SUBCOMMAND]" if own.commands else ""),
        ".SH DESCRIPTION",
        *about_lines(own.about),
        ".SH OPTIONS",
        *[line for flag in own.flags for line in flag_lines(flag)],
    ]
    if len(commands) > 1:
        lines.append(".SH SUBCOMMANDS")
    for command in commands[1:]:
        lines += [f".SS {roff(' '.join([name, *command.words]))}", *about_lines(command.about)]
        for place, what in command.positional:
            lines += term(f"\\fI{roff(place.split()[0])}\\fR", what)
        for flag in command.flags:
            if "--help" not in flag.names:
                lines += flag_lines(flag)
    lines.append(".SH EXIT STATUS")
    for code, what in EXIT:
        lines += term(f"\\fB{code}\\fR", what)
    if name in FILES:
        lines.append(".SH SIGNALS")
        for names, what in SIGNALS:
            lines += term(f"\\fB{names}\\fR", what)
        lines.append(".SH FILES")
        for path, what in FILES[name]:
            lines += term(f"\\fI{roff(path)}\\fR", what)
    others = [f".BR {roff(other)} (1)" for other in sorted(ABOUT) if other != name]
    lines += [".SH SEE ALSO", ",\n".join(others)]
    return "\n".join(lines).replace("(1),", "(1),") + "\n"


# Completions. ----------------------------------------------------------------------------------------


def flags_in(command, commands):
    """The flags that may stand behind a sub-command: its own, and the program's."""
    own = {flag.long: flag for flag in command.flags}
    return {flag.long: flag for flag in commands[0].flags} | own


def function_of(name):
    return "_" + name.replace("-", "_")


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def word_walk(commands, words, first):
    """Lines of bash and zsh that find the sub-command before the word under the cursor."""
    valued = sorted({f for c in commands for flag in c.flags if flag.takes_value for f in flag.names})
    known = [quoted(" ".join(c.words)) for c in commands[1:]]
    lines = [
        "  local command= i",
        f"  for ((i = {first}; i < {words[1]}; ++i)); do",
        f"    case ${{{words[0]}[i - 1]}} in {'|'.join(valued)}) continue ;; esac",
    ]
    if known:
        lines += [
            f"    case \"${{command:+$command }}${{{words[0]}[i]}}\" in",
            f"      {'|'.join(known)}) command=\"${{command:+$command }}${{{words[0]}[i]}}\" ;;",
            "    esac",
        ]
    return [*lines, "  done"]


def flag_values(commands):
    """The values of each flag, separated by spaces, "" for a file: by a pattern of bash for the command
    and the flag. A flag that several commands have with other values has a pattern for each."""
    values = {}
    for command in commands:
        for flag in command.flags:
            if flag.takes_value:
                by_command = values.setdefault(flag.long, {})
                by_command[" ".join(command.words)] = " ".join(flag.choices)
    patterns = {}
    for flag, by_command in values.items():
        if len(set(by_command.values())) == 1:
            patterns[f"*:{flag}"] = next(iter(by_command.values()))
        else:
            for command, choices in by_command.items():
                patterns[quoted(f"{command}:{flag}")] = choices
    return patterns


def bash_completion(name, commands):
    values = flag_values(commands)
    lines = [
        f"# Completion of {name} for bash. Made by deploy/packages/reference.py.",
        f"{function_of(name)}() {{",
        "  local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]} words=",
        "  # --flag=value comes as three words.",
        "  if [[ $flag == = ]]; then flag=${COMP_WORDS[COMP_CWORD - 2]}; fi",
        "  if [[ $word == = ]]; then word=; fi",
        *word_walk(commands, ("COMP_WORDS", "COMP_CWORD"), 1),
        "  case $command:$flag in",
    ]
    for flag, choices in sorted(values.items()):
        if choices:
            lines.append(f"    {flag}) mapfile -t COMPREPLY < <(compgen -W {quoted(choices)} -- "
                         '"$word"); return ;;')  # fmt: skip
    files = [flag for flag, choices in sorted(values.items()) if not choices]
    lines += [
        f"    {'|'.join(files)})",
        '      mapfile -t COMPREPLY < <(compgen -f -- "$word")',
        "      compopt -o filenames 2> /dev/null || true",
        "      return ;;",
        "  esac",
        "  case $command in",
    ]
    for command in commands:
        words = " ".join([*flags_in(command, commands), *command.commands])
        lines.append(f"    {quoted(' '.join(command.words))}) words={quoted(words)} ;;")
    lines += [
        "  esac",
        '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")',
        "}",
        f"complete -F {function_of(name)} {name}",
    ]
    return "\n".join(lines) + "\n"


def zsh_spec(flag):
    """--flag[what it does]:KIND:values"""
    what = re.sub(r"([\[\]:\\])", r"\\\1", flag.what)
    value = ""
    if flag.takes_value:
        values = f"({' '.join(flag.choices)})" if flag.choices else "_files"
        value = f":{flag.kind or 'value'}:{values}".replace("/", "-")
    return quoted(f"{flag.long}[{what}]{value}")


def zsh_completion(name, commands):
    about = {tuple(c.words): c.about[0] if c.about else "" for c in commands}
    lines = [
        f"#compdef {name}",
        f"# Completion of {name} for zsh. Made by deploy/packages/reference.py.",
        f"{function_of(name)}() {{",
        "  local -a flags commands",
        "  local context state state_descr line",
        "  typeset -A opt_args",
        *word_walk(commands, ("words", "CURRENT"), 2),
        "  case $command in",
    ]
    for command in commands:
        lines.append(f"    ({quoted(' '.join(command.words))})")
        lines.append("      flags=(")
        for flag in flags_in(command, commands).values():
            lines.append(f"        {zsh_spec(flag)}")
        lines.append("      )")
        rows = [
            quoted(f"{sub}:{about[(*command.words, sub)]}".replace("\\", "\\\\"))
            for sub in command.commands
        ]
        lines += [f"      commands=({' '.join(rows)})", "      ;;"]
    lines += [
        "  esac",
        "  _arguments -C $flags '*: :->word' && return",
        "  if [[ $state == word && ${#commands} -gt 0 ]]; then",
        "    _describe -t commands command commands",
        "  elif [[ $state == word ]]; then",
        "    _files",
        "  fi",
        "}",
        f"{function_of(name)} \"$@\"",
    ]
    return "\n".join(lines) + "\n"


def fish_quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish_completion(name, commands):
    lines = [f"# Completion of {name} for fish. Made by deploy/packages/reference.py."]
    about = {tuple(c.words): c.about[0] if c.about else "" for c in commands}
    for command in commands:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.words)
        for sub in command.commands:
            siblings = " ".join(command.commands)
            where = "; and ".join(
                [*([seen] if seen else []), f"not __fish_seen_subcommand_from {siblings}"]
            )
            what = fish_quoted(about[(*command.words, sub)])
            lines.append(f"complete -c {name} -f -n {quoted(where)} -a {sub} -d {what}")
        for flag in command.flags:
            parts = [f"complete -c {name}", *([f"-n {quoted(seen)}"] if seen else [])]
            parts += [f"-l {flag.long[2:]}", f"-d {fish_quoted(flag.what)}"]
            if flag.choices:
                parts.append(f"-x -a {fish_quoted(' '.join(flag.choices))}")
            elif flag.takes_value:
                parts.append("-r -F")
            lines.append(" ".join(parts))
    return "\n".join(lines) + "\n"


def build_date():
    """The day of the build, or the one that a reproducible build asks for."""
    return time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))


def write(folder, out):
    version = subprocess.run(
        [folder / "fl-server", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[1].rstrip(",")
    for name, commands in read(folder).items():
        made = {
            f"man1/{name}.1": man_page(name, commands, version, build_date()),
            f"bash/{name}": bash_completion(name, commands),
            f"zsh/_{name}": zsh_completion(name, commands),
            f"fish/{name}.fish": fish_completion(name, commands),
        }
        for path, text in made.items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write(Path(sys.argv[1]), Path(sys.argv[2]))
