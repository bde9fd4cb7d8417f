#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documents as a site with search: build/site/index.html, which can be opened from the
disk. A link that leads nowhere is an error.

    ./dev site

The documents link to each other and to sources by their places in the repository. So this copies
them, and all files that they link to, to build/site-source at the same places, and lets MkDocs build
the site there.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "build/site-source"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def tracked(pattern):
    """The repository's files of that pattern."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [pathlib.Path(name) for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def without_code(text):
    """Links in code are no links."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def linked(document):
    """The files to which a document links, by their places in the repository."""
    for target in LINK.findall(without_code((ROOT / document).read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (ROOT / document.parent / target).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path.relative_to(ROOT)


def folders_as_text(document):
    """The document's text with links to folders as plain text, because a site has no pages of
    folders."""

    def plain(match):
        is_folder = (ROOT / document.parent / match[2]).is_dir()
        return match[1] if is_folder else match[0]

    return re.sub(r"\[([^\]]+)\]\(([^)#\s]+)\)", plain, (ROOT / document).read_text())


def main():
    shutil.rmtree(SOURCE, ignore_errors=True)
    documents = tracked("*.md")
    files = {file for document in documents for file in linked(document)} | set(documents)
    files |= {file for file in tracked("docs/*") if file.suffix in (".svg", ".png")}
    for file in sorted(files):
        target = SOURCE / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if file in documents:
            target.write_text(folders_as_text(file))
        else:
            shutil.copyfile(ROOT / file, target)
    shutil.copyfile(ROOT / "deploy/site/iframe-worker.js", SOURCE / "iframe-worker.js")
    (SOURCE / "README.md").rename(SOURCE / "index.md")
    for document in SOURCE.rglob("*.md"):
        text = document.read_text()
        document.write_text(re.sub(r"\]\(((?:\.\./)*)README\.md", r"](\1index.md", text))
    config = ROOT / "deploy/site/mkdocs.yml"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    sys.exit(subprocess.run([*command, "--config-file", config], cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
