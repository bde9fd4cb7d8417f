"""No two headers define a type of the same name in the same namespace. A program whose
sources include the one or the other has two types of one name, and the linker keeps either one's functions for both.
And the rooms of the code have namespaces of their own, in which their files define all they define."""

import re

from source import CODE, Finding, code_only, line_at

HEADERS = (".hpp", ".h", ".cuh")
# What begins a block that matters, or a brace of any other one.
TOKEN = re.compile(
    r"\bnamespace\s*(?P<space>[\w:]*)\s*\{"
    r'|\bextern\s*(?P<linkage>"\s*")\s*\{'
    r"|\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:\[\[[^\]]*\]\]\s*|alignas\s*\([^)]*\)\s*)*"
    r"(?P<type>\w+)(?:\s+final)?\s*(?::[^:;{}()][^;{}()]*)?\{"
    r"|[{}]"
)


# The first that fits a path counts. What users' programs are written against, and what is shared by
# both ends, is in fl.
ROOMS = (
    ("server/", "fl::server"),
    ("client/client_main.", "fl"),
    ("client/learn/", "fl"),
    ("client/site/", "fl::site"),
    ("client/", "fl::client"),
    ("shared/codec/", "fl::codec"),
    ("shared/", "fl"),
    ("kernels/", "fl"),
    ("examples/sim/", "fl::sim"),
)
# Files that define something of another room, and why.
GUESTS = {
    "client/site/site_messages.cpp": "functions that the JSON library finds by their types",
}


def types(code):
    """(offset, full name) of each class, struct, union and enum that a namespace has itself."""
    blocks = []  # Names of the open namespaces; "": extern "C"; None: another block.
    for match in TOKEN.finditer(code):
        if match[0] == "}":
            if blocks:
                blocks.pop()
        elif match["space"] is not None:
            blocks.append(match["space"] or "(anonymous)")
        elif match["linkage"]:
            blocks.append("")
        else:
            if match["type"] and None not in blocks:
                yield match.start(), "::".join([*filter(None, blocks), match["type"]])
            blocks.append(None)


def check(tree):
    findings = []
    homes = {}
    for path in tree.paths(*HEADERS, under=CODE):
        code = re.sub(r"^[ \t]*#.*$", "", code_only(tree.texts[path]), flags=re.MULTILINE)
        for offset, name in types(code):
            home = homes.setdefault(name, path)
            if home != path:
                findings.append(
                    Finding(path, line_at(code, offset), f"{name} is defined in {home}, too")
                )
    return findings


def check_rooms(tree):
    findings = []
    for path in tree.paths(".hpp", ".cpp", ".cuh", ".cu", under=CODE):
        room = next((space for prefix, space in ROOMS if path.startswith(prefix)), None)
        if room is None or path in GUESTS:
            continue
        for match in re.finditer(r"^namespace (fl[\w:]*) \{", code_only(tree.texts[path]), re.MULTILINE):
            if f"{match[1]}::".startswith(f"{room}::"):
                continue
            line = line_at(tree.texts[path], match.start())
            findings.append(Finding(path, line, f"namespace {match[1]}: this room's is {room}"))
    return findings
