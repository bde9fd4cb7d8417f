"""How comments begin. These openings leave out the noun, so that a reader must find it in the code:
"The same, faster" (as what?), "Its bytes" (whose?), "Of the whole file" (what of it?)."""

import re

from source import CPP, HASH_COMMENTS, Finding, comments_only

OPENING = re.compile(r"(?:The same|Its|Of the|So many|Who)\b")
# What a comment's lines begin with: //, ///, /*, # or a docstring's quotes.
MARK = re.compile(r'(?://+|/\*+|#+|""")[ \t]*')


def beginnings(path, text):
    """(line, first words) of each comment and of each of its paragraphs. A line of comment alone goes
    on with the one above it; below a comment behind code it does so at the same column."""
    lines = text.splitlines()
    above = None  # Whether the comment on the line above is alone there, and its column.
    for number, line in enumerate(comments_only(path, text).splitlines(), 1):
        said = line.strip()
        words = MARK.sub("", said, count=1)
        if not words or words.startswith("SPDX-"):
            above = None
            continue
        is_alone = lines[number - 1].strip() == said
        at = len(line) - len(line.lstrip())
        if not (is_alone and above and (above[0] or above[1] == at)):
            yield number, words
        above = is_alone, at


def check(tree):
    return [
        Finding(path, line, f"a comment begins with '{match[0]}': name the thing")
        for path in tree.paths(*CPP, *HASH_COMMENTS, ".proto")
        for line, words in beginnings(path, tree.texts[path])
        if (match := OPENING.match(words))
    ]
