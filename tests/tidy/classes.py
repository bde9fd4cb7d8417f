"""How large classes may be, that a class has one source file, and how many others it may work with.

It reads the text of clang-formatted C++ and knows no types beyond names. What it counts of a class:
functions (constructors and operators too, and each overload, but not what is `= delete` or
`= default`, which the compiler writes) and data members (but not constants). A nested class counts
for itself, and its functions must lie in the source file of the outermost one.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

from sizes import kind_of
from source import CODE, CPP, Finding, code_only, line_at, table_lines

TABLE = "tests/tidy/classes.txt"
FORMAT = "write PATH CLASS then M members, F functions or N sources or N collaborators: why"
SOURCES = (".cpp", ".cu")
SIZE_MAX = 40  # Functions and members together; of a plain struct, its members.
SOURCES_MAX = 1
COLLABORATORS_MAX = 8  # Of ours, taken by reference, pointer or shared_ptr.

DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
ATTRIBUTE = re.compile(
    r"\[\[.*?\]\]|\b(?:alignas|decltype|explicit|noexcept|requires|__\w+__)\s*"
    r"\([^()]*(?:\([^()]*\)[^()]*)*\)"
    r"|\bFL_[A-Z_]+(?:\s*\((?:[^()]|\([^()]*\))*\))?",
    re.DOTALL,
)
OPERATOR = re.compile(r"\boperator\s*(?:\(\)|\[\]|[^\s\w(]+|\"\"\s*_\w+)")
LABEL = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
NO_MEMBER = re.compile(r"(?:using|typedef|friend|static_assert|enum|class|struct|union)\b")
CONSTANT = re.compile(r"\b(?:static\s+(?:inline\s+)?const|(?:inline\s+)?constexpr\s+static)")
CLASS = re.compile(r"\b(?:class|struct|union)\s+([\w:]+)")
POINTED = re.compile(
    r"shared_ptr<\s*(?:const\s+)?([\w:]+)|([\w:]+)(?:\s+const)?\s*(?:&(?!&)|\*)"
)
PARENTHESES = re.compile(r"\((?!\))[^()]*\)")
BRACES = re.compile(r"\{[^{}]*\}")
ANGLES = re.compile(r"<[^<>]*>")
EXCEPTION = re.compile(
    r"(\S+) (\S+) (?:(\d+) members, (\d+) functions|(\d+) (sources|collaborators)): \S.*"
)


@dataclass
class Class:
    """A class, struct or union: where it is and what it has."""

    name: str  # With its namespaces and the classes around it.
    path: str
    line: int
    around: str  # The outermost class that this one is in, or itself.
    functions: int = 0
    members: int = 0
    parameters: list = field(default_factory=list)  # Of each constructor.
    fields: list = field(default_factory=list)  # The declarations of its members.

    @property
    def short(self):
        return re.sub(r"^(?:[a-z]\w*::|\(\S+\)::)*", "", self.name)


def without(pattern, text, by=""):
    """The text without the pattern, taken away from the inside outwards."""
    while True:
        shorter = pattern.sub(by, text)
        if shorter == text:
            return text
        text = shorter


def flat(declaration):
    """A declaration without attributes, template arguments, and what parentheses and braces hold."""
    said = OPERATOR.sub("operator_", ATTRIBUTE.sub(" ", declaration))
    said = without(BRACES, said)
    said = without(ANGLES, without(PARENTHESES, said, "()"))
    return re.sub(r"^\s*template\s*", "", said).strip()


def is_function(declaration, said):
    is_pointer = re.match(r"[^(]*\(\s*\*", without(ANGLES, ATTRIBUTE.sub(" ", declaration)))
    return "(" in said.split("=")[0] and not is_pointer


class Reader:
    """Collects the classes of files, and which files define functions of which class."""

    def __init__(self):
        self.classes = []
        self.definitions = []  # (path, names that the class of a function in it may have)

    def read(self, path, text):
        self.path = path
        self.code = DIRECTIVE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), code_only(text))
        self.marks = [match.start() for match in re.finditer(r"[{};]", self.code)]
        self.ends, opened = {}, []
        for at in self.marks:
            if self.code[at] == "{":
                opened.append(at)
            elif self.code[at] == "}" and opened:
                self.ends[opened.pop()] = at
        self.namespace(0, len(self.code), ())

    def statements(self, begin, end):
        """(where it begins, head, body's first and last offset or None) of what a scope has."""
        start, index = begin, bisect_left(self.marks, begin)
        while index < len(self.marks) and self.marks[index] < end:
            at = self.marks[index]
            head = LABEL.sub(lambda m: " " * len(m[0]), self.code[start:at])
            if self.code[at] == ";":
                yield start + len(head) - len(head.lstrip()), head.strip(), None
                start = at + 1
            elif self.code[at] == "{":
                close = self.ends.get(at, end)
                if kind_of(head) != "value" and not re.search(r"(?<!operator)=", flat(head)):
                    yield start + len(head) - len(head.lstrip()), head.strip(), (at + 1, close)
                    start = close + 1
                index = bisect_left(self.marks, close)
            index += 1

    def namespace(self, begin, end, names):
        for at, head, body in self.statements(begin, end):
            if re.match(r"(?:inline )?namespace\b|extern\s*\"", head) and body:
                name = re.sub(r"^(?:inline )?namespace\s*|extern\s*\"\s*\"", "", head).strip()
                if not name and "extern" not in head:
                    name = f"({self.path})"
                self.namespace(*body, (*names, name) if name else names)
            elif body and kind_of(head + " ") == "type":
                self.type(at, head, body, names)
            elif "::" in head:
                found = re.search(r"([\w:]+)::~?\w+\s*\(", flat(head))
                if found:
                    self.define(names, found[1].strip(":"))

    def define(self, names, owner):
        spaces = "::".join(names).split("::")
        may_be = ["::".join([*spaces[:depth], owner]) for depth in range(len(spaces), -1, -1)]
        self.definitions.append((self.path, may_be))

    def type(self, at, head, body, names, around=""):
        said = without(ANGLES, ATTRIBUTE.sub(" ", head))
        found = CLASS.search(said)
        if not found or re.match(r"\s*enum\b", said):
            return
        name = "::".join([*names, found[1]])
        made = Class(name, self.path, line_at(self.code, at), around or name)
        self.classes.append(made)
        if "::" in found[1]:  # Defined outside of the class that it is nested in.
            self.define(names, found[1].rsplit("::", 1)[0])
        for at, head, body in self.statements(*body):
            head = re.sub(r"^template\s*<>\s*", "", head)
            if body and kind_of(head + " ") == "type":
                self.type(at, head, body, (name,), made.around)
            else:
                self.member(made, head)

    def member(self, made, head):
        said = flat(head)
        if not said or NO_MEMBER.match(said):
            return
        if not is_function(head, said):
            if not CONSTANT.search(said):
                made.members += said.count(",") + 1
                made.fields.append(head)
            return
        if re.search(r"=\s*(?:delete|default)$", said):
            return
        made.functions += 1
        own = re.escape(made.name.rsplit("::", 1)[-1])
        if re.match(rf"(?:(?:constexpr|explicit)\s+)*{own}\s*\(", said):
            first = re.search(rf"\b{own}\s*\(", head).end()
            depth, at = 1, first
            while depth and at < len(head):
                depth += {"(": 1, ")": -1}.get(head[at], 0)
                at += 1
            made.parameters.append(head[first : at - 1])


def parts_of(parameters):
    """The parameters, each without its default."""
    depth, part, parts = 0, "", []
    for letter in parameters:
        depth += {"(": 1, "<": 1, "{": 1, ")": -1, ">": -1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [part.split("=")[0] for part in [*parts, part]]


def collaborators(made, by_name, working):
    """The classes of ours that a class takes by reference, pointer or shared_ptr in one of its
    constructors, or in its struct Parts. A struct without functions is no collaborator."""

    def taken(declarations):
        found = [POINTED.search(said.split("=")[0]) for said in declarations]
        names = {(match[1] or match[2]).split("::")[-1] for match in found if match}
        return names & working

    parts = by_name.get(f"{made.name}::Parts")
    fields = taken(parts.fields) if parts else set()
    constructors = [taken(parts_of(parameters)) for parameters in made.parameters]
    return max((fields | found for found in constructors or [set()]), key=len)


class Agreed:
    """The agreed exceptions: classes.txt, read."""

    def __init__(self, text):
        self.limits = {}  # (path, class, what) -> (numbers, line of the table)
        self.used = set()
        self.findings = []
        for line_number, line in table_lines(text):
            match = EXCEPTION.fullmatch(line)
            if not match:
                self.findings.append(Finding(TABLE, line_number, FORMAT))
            elif match[6]:
                self.limits[match[1], match[2], match[6]] = ((int(match[5]),), line_number)
            else:
                numbers = (int(match[3]), int(match[4]))
                self.limits[match[1], match[2], "size"] = (numbers, line_number)

    def judge(self, made, what, numbers, usual, has):
        """A finding if the class has more than is usual and more than was agreed on."""
        if sum(numbers) <= usual:
            return []
        key = (made.path, made.short, what)
        agreed, _ = self.limits.get(key, ((usual,), 0))
        self.used.add(key)
        if len(agreed) == len(numbers) and all(n <= most for n, most in zip(numbers, agreed)):
            return []
        more = " and ".join(str(number) for number in agreed)
        return [Finding(made.path, made.line, f"{made.short} {has}, more than {more}")]

    def stale(self):
        return self.findings + [
            Finding(TABLE, line, f"{' '.join(key)}: is not needed any more")
            for key, (_, line) in self.limits.items()
            if key not in self.used
        ]


def check(tree):
    reader = Reader()
    for path in tree.paths(*CPP, under=CODE):
        reader.read(path, tree.texts[path])
    by_name = {made.name: made for made in reader.classes}
    working = {made.name.split("::")[-1] for made in reader.classes if made.functions}
    sources = defaultdict(set)  # Of each outermost class.
    for path, may_be in reader.definitions:
        found = next((by_name[name] for name in may_be if name in by_name), None)
        if found and path.endswith(SOURCES):
            sources[found.around].add(path)
    agreed = Agreed(tree.texts.get(TABLE, ""))
    findings = []
    for made in reader.classes:
        has = f"has {made.members} members and {made.functions} functions"
        numbers = (made.members, made.functions)
        findings += agreed.judge(made, "size", numbers, SIZE_MAX, has)
        files = sorted(sources[made.name])
        has = f"lies in {', '.join(files)}"
        findings += agreed.judge(made, "sources", (len(files),), SOURCES_MAX, has)
        others = sorted(collaborators(made, by_name, working))
        has = f"takes {len(others)} others: {', '.join(others)}"
        findings += agreed.judge(made, "collaborators", (len(others),), COLLABORATORS_MAX, has)
    return findings + agreed.stale()
