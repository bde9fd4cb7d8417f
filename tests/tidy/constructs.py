"""Constructs that this code does without, and the licence's line."""

import re

from source import CODE, CPP, HASH_COMMENTS, SPDX, Finding, code_only, line_at

MUTEX = "shared/base/async/mutex.hpp"

# g++ 12 destroys twice what braces or a capturing lambda make in the same statement as co_await.
CAPTURE = re.compile(r"(?<![\w)\]])\[(?!\[)[^\]]+\]\s*[({]")
BRACES = re.compile(r"(?:\w|>|[(,=]\s*)\{(?!\n)")


def statements_with_co_await(code):
    """(offset, text) of each: from the end of what is before it to its semicolon or its block."""
    end = 0
    for match in re.finditer(r"\bco_await\b", code):
        if match.start() < end:
            continue  # The second one of a statement.
        # clang-format ends a line behind a block's brace, and behind no other.
        before = [m.end() for m in re.finditer(r";|[{}]\s*\n", code[: match.start()])][-1:] or [0]
        behind = re.compile(r";|\{[ \t]*\n").search(code, match.end())
        end = behind.start() if behind else len(code)
        yield before[0], code[before[0] : end]


def doubtful_co_awaits(path, code):
    findings = []
    for offset, text in statements_with_co_await(code):
        for pattern, what in ((CAPTURE, "captures"), (BRACES, "braces")):
            found = pattern.search(text)
            if found:
                at = line_at(code, offset + found.start())
                findings.append(
                    Finding(path, at, f"a statement with co_await has {what}: name that first")
                )
    return findings


def banned(path, code, exceptions):
    detached = re.finditer(r"\bdetached\b(?!\.hpp)", code)
    # Some namespaces hold operators, which can't be named otherwise.
    using = list(re.finditer(r"\busing namespace (?![\w:]*_(literals|operators)\b)", code))
    if len(using) <= exceptions.limit(path, "using-namespace", len(using), 0):
        using = []
    return [
        Finding(path, line_at(code, match.start()), "detached: a task has an owner, which joins it")
        for match in detached
    ] + [Finding(path, line_at(code, match.start()), "using namespace") for match in using]


def plain_mutexes(path, code, exceptions):
    """Finds mutexes of which the compiler does not know what they guard."""
    found = list(re.finditer(r"\bstd::\w*mutex\b(?!&)", code))
    if len(found) <= exceptions.limit(path, "std-mutex", len(found), 0):
        return []
    return [
        Finding(path, line_at(code, match.start()), f"{match[0]}: use fl::Mutex ({MUTEX})")
        for match in found
    ]


def promises(path, text):
    return [
        Finding(path, line_at(text, match.start()), f"{match[0]}: do it, or leave it out")
        for match in re.finditer(r"\b(TODO|FIXME|XXX)\b", text)
    ]


def check(tree, exceptions):
    findings = []
    for path in tree.paths(*CPP):
        code = code_only(tree.texts[path])
        findings += doubtful_co_awaits(path, code)
        if path.startswith(CODE):
            findings += banned(path, code, exceptions)
        if path.startswith(CODE) and path != MUTEX:
            findings += plain_mutexes(path, code, exceptions)
    for path in tree.paths(*CPP, *HASH_COMMENTS, ".proto"):
        findings += promises(path, tree.texts[path])
    return findings


def check_licence(tree):
    """All source files begin with the same SPDX line, or none has one; and there is a licence."""
    if "Apache-2.0" not in tree.texts.get("LICENSE", ""):
        return [Finding("LICENSE", 1, "names no licence")]
    heads = {
        path: "\n".join(tree.texts[path].splitlines()[:2])
        for path in tree.paths(*CPP, *HASH_COMMENTS, ".proto")
    }
    if not any("SPDX" in head for head in heads.values()):
        return []
    line = re.compile(rf"^(//|#) {SPDX}$", re.MULTILINE)
    return [
        Finding(path, 1, f"its head has no line '{SPDX}'")
        for path, head in heads.items()
        if not line.search(head)
    ]
