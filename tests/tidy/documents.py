"""What documents and comments name must exist: files, tests, links, flags and commands."""

import re
from fnmatch import fnmatch
from posixpath import basename, dirname, join, normpath

from source import CPP, HASH_COMMENTS, Finding, comments_only, line_at, table_lines

FOREIGN = "tests/tidy/foreign.txt"
TOP = "(?:server|client|shared|kernels|tests|examples|deploy|docs|proto)"
# A name that ends like a source file's or a document's; or, in a document, a path of ours.
FILE = re.compile(
    r"(?<![\w./*{}$<>-])((?:[\w.*{},-]+/)*[\w*{},-]+"
    r"\.(?:hpp|cpp|h|cuh?|py|sh|md|proto|cmake|svg|supp))(?![\w*/-]|\.\w)"
)
PATH = re.compile(rf"(?<![\w./~$-])({TOP}/[\w./*-]*[\w*])(?![\w(])")
URL = re.compile(r"\w+://[^\s)>\"]+")
CODE_SPAN = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"\b(\w+_test|process_\w+)\b(?![.\w(])")


class Foreign:
    """foreign.txt, read: names that look like ours and belong to others or to the user."""

    def __init__(self, text):
        self.at = {line: number for number, line in table_lines(text)}
        self.used = set()

    def has(self, name):
        if name in self.at:
            self.used.add(name)
        return name in self.at

    def stale(self):
        return [
            Finding(FOREIGN, number, f"{name}: nothing names it any more")
            for name, number in self.at.items()
            if name not in self.used
        ]


def documents(tree):
    return tree.paths(".md")


def exists(tree, path, name):
    """Whether `name`, written in `path`, is a file or folder of ours: by its path from the root,
    from where it is written, by the end of its path, or as a pattern (*, {a,b}, NAME in capitals).
    """
    name = name.rstrip("/.")
    pattern = re.sub(r"\{[^}]*\}", "*", re.sub(r"\b[A-Z]{3,}(?=[._]|$)|(?<=_)[A-Z]{3,}", "*", name))
    pattern = name if name in tree.texts else pattern
    near = normpath(join(dirname(path), name))
    if {name, near} & (tree.texts.keys() | tree.folders):
        return True
    if {name + ".hpp", name + ".cpp"} & tree.texts.keys():  # As a pair of files is often called.
        return True
    if "*" not in pattern and "/" not in pattern:
        return any(basename(file) == pattern for file in tree.texts)
    return any(
        fnmatch(file, pattern) or fnmatch(file, "*/" + pattern)
        for file in [*tree.texts, *tree.folders]
    )


def check_files(tree, foreign):
    """Every file that a document or a comment names."""
    findings = []

    def look(path, text, patterns):
        text = URL.sub(lambda match: " " * len(match[0]), text)
        seen = set()
        for match in (m for pattern in patterns for m in pattern.finditer(text)):
            name = match[1]
            if name.startswith("build") or name.endswith(".pb.h") or (match.start(), name) in seen:
                continue
            seen.add((match.start(), name))
            if not exists(tree, path, name) and not foreign.has(name):
                at = line_at(text, match.start())
                findings.append(Finding(path, at, f"names {name}, which does not exist"))

    for path in documents(tree):
        look(path, tree.texts[path], [FILE, PATH])
    for path in tree.paths(*CPP, *HASH_COMMENTS, ".proto", "dev", ".ci/run"):
        look(path, comments_only(path, tree.texts[path]), [FILE])
    return findings


def test_names(tree):
    """What CTest and the files call tests."""
    names = {basename(path).rsplit(".", 1)[0] for path in tree.paths(".cpp", ".py", under="tests/")}
    for path in tree.paths("CMakeLists.txt"):
        names |= set(re.findall(r"(?:fl_test\(|add_test\(NAME )(\w+)", tree.texts[path]))
    names |= {"process_" + name[: -len("_test")] for name in names if name.endswith("_test")}
    return names


def check_tests(tree, foreign):
    names = test_names(tree)
    return [
        Finding(path, line_at(tree.texts[path], match.start()), f"names no test: {match[1]}")
        for path in documents(tree)
        for match in TEST.finditer(tree.texts[path])
        if match[1] not in names and not foreign.has(match[1])
    ]


THREATS = "docs/design/threats.md"
PROOFS = (THREATS, "docs/guide/recover.md")
TITLED = re.compile(r'`(tests/[^`]+)`(?: "([^"]+)")?')


def check_threats(tree):
    """The last cell of each row names tests: files, most with a title or function in them."""
    lines = [
        (page, number, line.split(" | "))
        for page in PROOFS
        for number, line in enumerate(tree.texts.get(page, "").splitlines(), 1)
    ]
    findings = []
    for page, number, cells in lines:
        if len(cells) != 3 or cells[2].startswith(("test |", "none")):
            continue
        tests = TITLED.findall(cells[2])
        if not tests:
            findings.append(Finding(page, number, "names no test"))
        for path, title in tests:
            # A long title is two strings in the source.
            text = re.sub(r'"\s*"', "", tree.texts.get(path, ""))
            if title not in text or path not in tree.texts:
                findings.append(Finding(page, number, f"{path} has no test '{title}'"))
    return findings


SITE = "deploy/site/mkdocs.yml"


def check_site(tree):
    """Every page of docs/ stands in the site's contents, and what stands there is a page."""
    text = tree.texts.get(SITE, "")
    named = {
        match[1]: line_at(text, match.start())
        for match in re.finditer(r"^ +- .*: (\S+\.md)$", text, re.MULTILINE)
    }
    pages = set(documents(tree))
    findings = [
        Finding(SITE, 1, f"leaves out {path}")
        for path in sorted(pages - named.keys())
        if path.startswith("docs/")
    ]
    return findings + [
        Finding(SITE, line, f"names {path}, which does not exist")
        for path, line in named.items()
        if path not in pages and path != "index.md"
    ]


INDEX = "docs/README.md"


def check_index(tree):
    """The list of all pages leaves none out."""
    text = tree.texts.get(INDEX, "")
    linked = {normpath(join(dirname(INDEX), match[1])) for match in LINK.finditer(text)}
    return [
        Finding(INDEX, 1, f"leaves out {path}")
        for path in documents(tree)
        if path.startswith("docs/") and path != INDEX and path not in linked
    ]


def anchors(text):
    """The places in a document that links can name, as GitHub and others make them of headings."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = [
        re.sub(r"[`*]", "", h).strip().lower() for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def check_links(tree):
    """Every relative link, with its place in the other document."""
    findings = []
    for path in documents(tree):
        text = CODE_SPAN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), tree.texts[path])
        for match in LINK.finditer(text):
            target, _, place = match[1].partition("#")
            if URL.match(match[1]) or match[1].startswith("mailto:"):
                continue
            at, file = line_at(text, match.start()), (
                normpath(join(dirname(path), target)) if target else path
            )
            if file not in tree.texts and file not in tree.folders:
                findings.append(Finding(path, at, f"links to {target}, which does not exist"))
            elif place and file.endswith(".md") and place not in anchors(tree.texts[file]):
                findings.append(Finding(path, at, f"links to {file}#{place}: no such heading"))
    return findings


def code_lines(text):
    """(line, code) of each line in a block of code, and of each word in backticks."""
    for match in CODE_SPAN.finditer(text):
        first = line_at(text, match.start())
        inner = match[0].strip("`").replace("\\\n", "  ")
        if match[0].startswith("```"):
            inner = match[0][3:-3].replace("\\\n", "  \f")
            for number, line in enumerate(inner.split("\n")):
                yield first + number, line.replace("\f", " ")
        else:
            yield first, inner


def flags_of_scripts(tree):
    """The flags that our scripts, tests and benchmarks take, or give to other programs."""
    scripts = tree.paths(".py", ".sh", "dev") + tree.paths(".cpp", under="tests/bench/")
    text = "\n".join(tree.texts[path] for path in scripts)
    return set(re.findall(r"""(?<![\w-])["']?(--[a-z][a-z0-9-]*)(?=["',)\]])""", text))


def check_commands(tree, programs, foreign):
    """Every flag and sub-command that a document has in its code. `programs` maps a program to its
    sub-commands ("" for itself), and these to their flags."""
    findings = []
    every_flag = {
        flag for commands in programs.values() for flags in commands.values() for flag in flags
    }
    every_flag |= flags_of_scripts(tree)
    for path in documents(tree):
        for line, code in code_lines(tree.texts[path]):
            named = [name for name in programs if re.search(rf"\b{name}\b(?!\.)", code)]
            for name in named:
                for word in re.findall(
                    rf"(?:^|[/\s(\"`]){name}(?:\s+--state\s+\S+)?\s+([a-z][a-z-]*)\b", code
                ):
                    if word not in programs[name] and not foreign.has(f"{name} {word}"):
                        findings.append(Finding(path, line, f"{name} has no sub-command {word}"))
            known = {
                f for name in named for flags in programs[name].values() for f in flags
            } or every_flag
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code):
                if flag not in known and not foreign.has(flag):
                    whose = " or ".join(named) or "any program"
                    findings.append(Finding(path, line, f"{flag} is no flag of {whose}"))
    return findings


def check_dev(path, text, dev_commands):
    return [
        Finding(path, line_at(text, match.start()), f"./dev has no command {match[1]}")
        for match in re.finditer(r"\./dev ([a-z]+)\b", text)
        if match[1] not in dev_commands
    ]
