"""Who may include whom: includes.txt, held against every #include and against the document."""

import re
from fnmatch import fnmatch

from source import CPP, Finding, line_at, table_lines

TABLE = "tests/tidy/includes.txt"
DOCUMENT = "docs/design/includes.md"
BEGIN, END = "<!-- includes -->", "<!-- /includes -->"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(<[^>\n]+>|"[^"\n]+")', re.MULTILINE)


class Table:
    """includes.txt, read. Its head explains the three kinds of lines."""

    def __init__(self, text):
        self.may = {}  # folder -> folders that it may include; None: any.
        self.against = set()  # (folder, folder that it includes against the order)
        self.lines = {}  # folder -> its line's number
        self.only = []  # (headers' pattern, folders)
        self.apart = []  # (folder, folder)
        for number, line in table_lines(text):
            name, _, rest = (part.strip() for part in line.partition(":"))
            words = rest.split()
            if name == "apart":
                self.apart.append(tuple(words))
            elif name.startswith("<"):
                self.only += [(header.strip("<>"), words) for header in name.split()]
            elif words == ["*"]:
                self.may[name], self.lines[name] = None, number
            else:
                self.may[name] = [word.lstrip("!") for word in words]
                self.lines[name] = number
                self.against |= {(name, word[1:]) for word in words if word.startswith("!")}

    def folder_of(self, path):
        """The longest folder of the table that the file lies in, or None."""
        around = [name for name in self.may if path.startswith(name + "/")]
        return max(around, key=len, default=None)


def check(tree, table):
    """Every include that the table doesn't allow, and everything in the table that isn't true."""
    findings, used = [], set()
    for path in tree.paths(*CPP):
        folder = table.folder_of(path)
        if folder is None:
            findings.append(Finding(path, 1, f"{TABLE} has no line for its folder"))
            continue
        for match in INCLUDE.finditer(tree.texts[path]):
            line, header = line_at(tree.texts[path], match.start(1)), match[1][1:-1]
            if match[1].startswith("<"):
                findings += outside(path, line, header, table)
            else:
                findings += own(tree, path, line, header, folder, table, used)
    for folder, allowed in table.may.items():
        if folder not in tree.folders:
            findings.append(
                Finding(TABLE, table.lines[folder], f"{folder}: there is no such folder")
            )
        for other in allowed or ():
            if other not in table.may:
                what = f"{folder}: {other} has no line of its own"
                findings.append(Finding(TABLE, table.lines[folder], what))
            elif (folder, other) not in used:
                what = f"{folder} includes nothing of {other}"
                findings.append(Finding(TABLE, table.lines[folder], what))
    return findings + circles(table)


def own(tree, path, line, header, folder, table, used):
    """Of an include of our own file."""
    if header not in tree.texts and not header.endswith(".pb.h"):
        return [Finding(path, line, f"there is no file {header} (includes start at the root)")]
    for pair in table.apart:
        sides = [side for side in pair if path.startswith(side + "/")]
        if sides and any(header.startswith(f"{other}/") for other in pair if other not in sides):
            return [Finding(path, line, f"{' and '.join(pair)} never include each other: {header}")]
    other = table.folder_of(header)
    if other == folder or table.may[folder] is None:
        return []
    if other not in table.may[folder]:
        return [Finding(path, line, f"{folder} may not include {other or header} ({TABLE})")]
    used.add((folder, other))
    return []


def outside(path, line, header, table):
    """Of an include of another library's file, which some folders keep for themselves."""
    return [
        Finding(path, line, f"<{header}> is for {', '.join(folders)} only ({TABLE})")
        for pattern, folders in table.only
        if fnmatch(header, pattern) and not any(path.startswith(f + "/") for f in folders)
    ]


def circles(table):
    """A finding for each circle among the folders, at the line that closes it."""
    findings, done = [], set()

    def walk(folder, way):
        if folder in way:
            circle = " -> ".join(way[way.index(folder) :] + [folder])
            findings.append(Finding(TABLE, table.lines[way[-1]], f"a circle: {circle}"))
        elif folder not in done:
            for other in table.may.get(folder) or ():
                if (folder, other) not in table.against:
                    walk(other, way + [folder])
            done.add(folder)

    for folder in table.may:
        walk(folder, [])
    return findings


def as_markdown(table):
    """The part of the document between the markers."""
    rows = {}  # what may be included -> the folders that may
    for folder, allowed in table.may.items():
        marks = {other: "!" if (folder, other) in table.against else "" for other in allowed or ()}
        others = (
            "all" if allowed is None else ", ".join(f"{m}`{other}`" for other, m in marks.items())
        )
        rows.setdefault(others or "none", []).append(f"`{folder}`")
    lines = [f"| {', '.join(folders)} | {others} |" for others, folders in rows.items()]
    return "\n".join(["| folder | may include |", "|---|---|", *lines])


def written(document, table):
    """The document with the table in its place; None if it has no place for it."""
    parts = re.fullmatch(f"(.*{BEGIN}\n).*({END}.*)", document, re.DOTALL)
    return f"{parts[1]}\n{as_markdown(table)}\n\n{parts[2]}" if parts else None


def check_document(document, table):
    now = written(document, table)
    if now is None:
        return [Finding(DOCUMENT, 1, f"there is no place for the includes: {BEGIN} and {END}")]
    if now != document:
        line = line_at(document, document.index(BEGIN))
        return [
            Finding(
                DOCUMENT, line, f"is not what {TABLE} says: run tests/tidy/tidy_test.py --write"
            )
        ]
    return []
