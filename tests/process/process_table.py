# SPDX-License-Identifier: Apache-2.0
"""What the system tells of a process in /proc."""

import contextlib
import pathlib
import re


def memory_of(pid, field):
    """The bytes in a field of the process's status: VmRSS, VmHWM, RssAnon. 0: it has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return 1024 * int(found[1]) if found else 0


def children_of(pid):
    """The processes that this one has started, and those that they have."""
    found = []
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *children_of(child)]
    return found
