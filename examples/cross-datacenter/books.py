# SPDX-License-Identifier: Apache-2.0
"""The King James Bible by books, from Debian's packages bible-kjv and bible-kjv-text."""

import math
import re
import shutil
import subprocess
import sys


def read_books():
    """Returns each book's verses, by its name."""
    if shutil.which("bible") is None:
        sys.exit("install the packages bible-kjv and bible-kjv-text first")
    verses = subprocess.run(
        ["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True
    ).stdout
    books = {}
    for line in verses.splitlines():
        found = re.match(r"(\S+?)\d+:\d+ (.*)", line)
        if found:
            books.setdefault(found[1], []).append(found[2] + "\n")
    return books


def split_book(lines):
    """Returns a book's first 95 %, and the rest."""
    kept = len(lines) - math.ceil(len(lines) / 20)
    return "".join(lines[:kept]), "".join(lines[kept:])
