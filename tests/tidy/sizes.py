"""How long functions and files may be."""

import ast
import re

from source import CODE, CPP, SPDX, Finding, code_only, line_at

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
TEST_LINES_MAX = 700

TYPE = re.compile(r"\b(class|struct|union|enum)\b")
NAME = re.compile(r"([~\w:]*(?:operator\s*\S+?)?)\s*\(")


def functions(text):
    """(name, first line, last line) of each function in clang-formatted C++, those inside another
    one, lambdas for example, counted as part of it."""
    code = re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        lambda m: re.sub(r"[^\n]", " ", m[0]),
        code_only(text),
        flags=re.MULTILINE,
    )
    scopes = []  # Of every open brace: (kind, name, first line).
    start = 0  # Where the statement that we are in begins.
    for match in re.finditer(r"[{};]", code):
        at, is_inside = match.start(), any(kind == "function" for kind, *_ in scopes)
        if match[0] == "{":
            head = code[start:at]
            kind = "block" if is_inside else kind_of(head)
            first = line_at(code, start + len(head) - len(head.lstrip()))
            scopes.append((kind, name_of(head), first))
            if kind not in ("value", "block"):
                start = at + 1
        elif match[0] == "}" and scopes:
            kind, name, first = scopes.pop()
            if kind == "function":
                yield name, first, line_at(code, at)
            if kind != "value":
                start = at + 1
        elif match[0] == ";" and not any(kind == "value" for kind, *_ in scopes):
            start = at + 1


def kind_of(head):
    """What a brace outside of functions begins, by what stands before it."""
    said = head.strip()
    if head[-1:] not in (" ", "\n") or said.endswith(("=", "(", ",", "return")):
        return "value"  # As in `member_{1}` and `= {1}`.
    if re.match(r"(inline )?namespace\b|extern\b", said) and "(" not in said:
        return "namespace"
    without_brackets = re.sub(r"<[^<>]*>|\[\[.*?\]\]|\bFL_[A-Z_]+\((?:[^()]|\([^()]*\))*\)", "", said)
    outside = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\)", "", without_brackets))
    if TYPE.search(outside) and "(" not in re.sub(r"alignas\(\w+\)", "", without_brackets):
        return "type"
    return "function" if "(" in said else "value"


def name_of(head):
    parts = re.sub(r"template <.*?>\s+|\[\[.*?\]\]", "", head.strip(), flags=re.DOTALL)
    found = NAME.search(parts)
    return found[1] if found else ""


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def check(tree, exceptions):
    findings = []

    def judge(path, function, line, lines, usual):
        limit = exceptions.limit(path, function, lines, usual)
        if lines > limit:
            what = f"{function}() has" if function else "the file has"
            findings.append(Finding(path, line, f"{what} {lines} lines, more than {limit}"))

    for path in tree.paths(*CPP, ".py", ".sh", under=CODE + ("tests/", "deploy/")):
        text = tree.texts[path]
        judge(
            path,
            "",
            1,
            text.count("\n") - text.count(SPDX, 0, 200),  # The licence's line aside.
            TEST_LINES_MAX if path.startswith("tests/") else FILE_LINES_MAX,
        )
        if path.startswith(CODE) and not path.endswith(".sh"):
            found = python_functions(text) if path.endswith(".py") else functions(text)
            for name, first, last in found:
                judge(path, name, first, last - first + 1, FUNCTION_LINES_MAX)
    return findings
