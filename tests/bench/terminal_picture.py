#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a recorded terminal session, read from standard input, as an SVG picture.

    terminal_picture.py TITLE PICTURE.svg < SESSION.txt

Lines that begin with "$ " are commands. Needs the packages of deploy/requirements-plots.txt.
"""

import io
import sys

from rich.console import Console
from rich.text import Text


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    title, picture = sys.argv[1:]
    lines = sys.stdin.read().splitlines()
    width = max(len(line) for line in lines) + 1
    console = Console(record=True, width=width, file=io.StringIO(), highlight=False)
    for line in lines:
        style = "bold bright_green" if line.startswith("$ ") else ""
        console.print(Text(line, style=style), soft_wrap=True)
    console.save_svg(picture, title=title, unique_id="tributary")


if __name__ == "__main__":
    main()
