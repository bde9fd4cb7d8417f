"""Functions that a header declares and that nothing calls, or only tests.

It counts words and knows no types: functions of the same name count together, so a call of one of
them is a call of all. A linker's map would miss inline functions, which leave nothing in an object
when nobody calls them, and report those that an optimized library has inlined.
"""

import re
from collections import Counter
from fnmatch import fnmatch

from sizes import functions
from source import CODE, CPP, Finding, code_only, line_at, table_lines

TABLE = "tests/tidy/unused.txt"
HEADERS = (".hpp", ".h", ".cuh")
# A name, and arguments behind which a declaration or a definition goes on.
DECLARED = re.compile(
    r"(?<![\w.>:~])([a-z]\w*)\s*\((?=[^;{}]*?\)\s*"
    r"(?:const|noexcept|override|final|requires|->|\[\[|=|;|\{|:|\n))"
)
NO_TYPE = re.compile(r"\b(?:return|co_return|co_await|co_yield|throw|else|case|new|delete)$")
KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "catch", "alignof", "decltype"}


def declarations(code):
    """(name, line) of each function that a header declares. A type stands before its name."""
    for match in DECLARED.finditer(code):
        before = code[: match.start()].rstrip()
        if match[1] not in KEYWORDS and re.search(r"[\w>&*]$", before):
            if not NO_TYPE.search(before):
                yield match[1], line_at(code, match.start(1))


def exceptions_of(text):
    """{(path, name or pattern): line of the table}, and what is wrong with the table."""
    found, findings = {}, []
    for number, line in table_lines(text):
        match = re.fullmatch(r"(\S+) (\S+): \S.*", line)
        if match:
            found[match[1], match[2]] = number
        else:
            findings.append(Finding(TABLE, number, "write PATH NAME: why"))
    return found, findings


def check(tree):
    agreed, findings = exceptions_of(tree.texts.get(TABLE, ""))
    declared = []  # (path, line, name)
    said = {True: Counter(), False: Counter()}  # How often code says a word, by whether it is a test.
    made = Counter()  # How often it declares or defines a function of this name.
    for path in tree.paths(*CPP):
        code = code_only(tree.texts[path])
        said[path.startswith("tests/")].update(re.findall(r"\w+", code))
        if not path.startswith(CODE):
            continue
        if path.endswith(HEADERS):
            for name, line in declarations(code):
                declared.append((path, line, name))
                made[name] += 1
        else:
            made.update(name.split("::")[-1] for name, *_ in functions(tree.texts[path]))
    used = set()
    for path, line, name in declared:
        if said[False][name] > made[name]:
            continue
        excuses = {key for key in agreed if key[0] == path and fnmatch(name, key[1])}
        used |= excuses
        if not excuses:
            who = "only tests call" if said[True][name] else "nothing calls"
            findings.append(Finding(path, line, f"{who} {name}()"))
    return findings + [
        Finding(TABLE, line, f"{' '.join(key)}: is not needed any more")
        for key, line in agreed.items()
        if key not in used
    ]
