"""What all rules of the tidy test need: the files, and their code without comments."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/tidy/"  # Its own tables and fixtures break rules on purpose.
CODE = ("server/", "client/", "shared/", "kernels/", "examples/")  # Without the tests.
CPP = (".hpp", ".cpp", ".h", ".cu", ".cuh")
SPDX = "SPDX-License-Identifier: Apache-2.0"
HASH_COMMENTS = (".py", ".sh", ".cmake", "CMakeLists.txt")


@dataclass(frozen=True)
class Finding:
    """A broken rule at a place, printed as compilers print theirs."""

    path: str
    line: int
    what: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.what}"


class Tree:
    """The files of a source tree by their paths from its root, each read once."""

    def __init__(self, texts):
        self.texts = dict(texts)
        self.folders = {
            "/".join(path.split("/")[:depth])
            for path in self.texts
            for depth in range(1, path.count("/") + 1)
        }

    @staticmethod
    def of_repository(root=ROOT):
        """What git tracks or could track; outside git, every file but those of builds."""
        if (root / ".git").exists():
            listed = subprocess.run(
                ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                cwd=root,
                capture_output=True,
                check=True,
            ).stdout
            paths = sorted({path for path in os.fsdecode(listed).split("\0") if path})
        else:
            paths = sorted(
                path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()
            )
            paths = [path for path in paths if not re.match(r"build(-\w+)?/|\.git/", path)]
        files = [path for path in paths if (root / path).is_file()]
        return Tree({path: (root / path).read_text(errors="replace") for path in files})

    def paths(self, *endings, under=("",)):
        """The files with one of these endings in one of these folders, in order."""
        return [
            path
            for path in sorted(self.texts)
            if path.endswith(endings) and path.startswith(under) and not path.startswith(HERE)
        ]


LITERALS_AND_COMMENTS = re.compile(
    r"""R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" """
    r"""| (?<!\w)'(?:\\.|[^'\\\n])+' | //[^\n]* | /\*.*?\*/""",
    re.DOTALL | re.VERBOSE,
)


def code_only(text):
    """C++ with comments, strings and characters blanked out. Lines and columns stay."""

    def blank(match):
        kept = '"' if match[0][0] in "R\"'" else " "
        inner = re.sub(r"[^\n]", " ", match[0])
        return kept + inner[1:-1] + kept if len(inner) > 1 else inner

    return LITERALS_AND_COMMENTS.sub(blank, text)


def comments_only(path, text):
    """A source file's comments (Python: docstrings too), the rest blanked out; lines stay."""
    if path.endswith(CPP + (".proto",)):
        pattern, is_comment = LITERALS_AND_COMMENTS, lambda found: found.startswith(("//", "/*"))
    elif path.endswith(".py"):
        pattern = re.compile(r'"""(.*?)"""|"(?:\\.|[^"\\\n])*"|#[^\n]*', re.DOTALL)
        is_comment = lambda found: found.startswith(('"""', "#"))
    else:
        pattern, is_comment = re.compile(r"(?<!\S)#[^\n]*"), lambda found: True
    parts, end = [], 0
    for match in pattern.finditer(text):
        parts.append(re.sub(r"[^\n]", " ", text[end : match.start()]))
        parts.append(match[0] if is_comment(match[0]) else re.sub(r"[^\n]", " ", match[0]))
        end = match.end()
    parts.append(re.sub(r"[^\n]", " ", text[end:]))
    return "".join(parts)


def line_at(text, offset):
    return text.count("\n", 0, offset) + 1


def table_lines(text):
    """(number, line) of a table's lines that say something; # begins a comment."""
    for number, line in enumerate(text.splitlines(), 1):
        said = re.sub(r"(^|\s)#.*", "", line).strip()
        if said:
            yield number, said
