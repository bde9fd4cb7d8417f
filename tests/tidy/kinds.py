"""docs/design/adding-things.md, held against the code: the files that a kind of thing takes are
those that name the page's example of it."""

import re

from source import CODE, CPP, HASH_COMMENTS, Finding, comments_only, line_at

PAGE = "docs/design/adding-things.md"
TABLE = re.compile(r"^\| kind \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(#[^)]+\)")
# Their comments are those of C++. HTML and lists of symbols are looked at whole.
LIKE_CPP = (".js", ".css")
CODE_FILES = (*CPP, *HASH_COMMENTS, *LIKE_CPP, ".proto", ".html", ".map")


class Row:
    """A row of the table: `kind` as it is called there, the example's `names`, its `files`."""

    def __init__(self, line, number):
        cells = [cell.strip() for cell in line.strip().split("|")[1:5]]
        link = LINK.search(cells[0])
        self.number = number
        self.kind = link[1] if link else cells[0]
        self.names = re.findall(r"`([^`]+)`", cells[1])
        self.files = re.findall(r"`([^`]+)`", cells[2] + cells[3])


def rows_of(text):
    table = TABLE.search(text)
    if table is None:
        return []
    first = line_at(text, table.start(1))
    return [Row(line, first + i) for i, line in enumerate(table[1].splitlines())]


def pattern_of(name):
    """A name in small letters is found however a language joins its words: k-bit, k_bit, KBit. Any
    other name is found as it stands."""
    if re.fullmatch(r"[a-z0-9_-]+", name):
        words = re.sub(r"[-_]", "[-_ ]?", name)
        return rf"(?<![A-Za-z0-9])(?i:{words})(?![a-z0-9])"
    return rf"(?<![\w.]){re.escape(name)}(?!\w)"


def without_comments(path, text):
    if path.endswith((".html", ".map")):
        return text
    comments = comments_only("x.cpp" if path.endswith(LIKE_CPP) else path, text)
    return "".join(" " if said.strip() else code for code, said in zip(text, comments))


def files_that_name(tree, names):
    """The files whose path or code, without comments, has one of the names. Tests are left out."""
    pattern = re.compile("|".join(pattern_of(name) for name in names))
    return {
        path
        for path in tree.paths(*CODE_FILES, under=(*CODE, "proto/", "deploy/"))
        if pattern.search(path)
        or pattern.search(tree.texts[path])
        and pattern.search(without_comments(path, tree.texts[path]))
    }


def check(tree):
    """Every row's files, and that each section has a row and each row a section."""
    text = tree.texts.get(PAGE, "")
    rows = rows_of(text)
    findings = [] if rows else [Finding(PAGE, 1, "there is no table of kinds")]
    for row in rows:
        if not row.names:
            continue
        found, named = files_that_name(tree, row.names), set(row.files)
        example = " or ".join(row.names)
        for path in sorted(found - named):
            what = f"{row.kind}: {path} names {example}, and is not in the row"
            findings.append(Finding(PAGE, row.number, what))
        for path in sorted(named - found):
            what = f"{row.kind}: {path} does not name {example}"
            findings.append(Finding(PAGE, row.number, what))
    sections = {match[1].lower(): line_at(text, match.start()) for match in SECTION.finditer(text)}
    kinds = {row.kind.lower(): row.number for row in rows}
    findings += [
        Finding(PAGE, at, f"{name}: the table has no row for it")
        for name, at in sections.items()
        if name not in kinds
    ]
    return findings + [
        Finding(PAGE, at, f"{name}: there is no section on it")
        for name, at in kinds.items()
        if name not in sections
    ]
