"""The agreed exceptions: exceptions.txt, read."""

import re

from source import Finding, table_lines

TABLE = "tests/tidy/exceptions.txt"


class Exceptions:
    def __init__(self, text):
        self.agreed = {}  # (path, name or "") -> (number, line of the table)
        self.used = set()
        self.findings = []
        for line_number, line in table_lines(text):
            match = re.fullmatch(r"(\S+)(?: (\S+))? (\d+): \S.*", line)
            if match:
                self.agreed[match[1], match[2] or ""] = (int(match[3]), line_number)
            else:
                what = "write PATH [NAME] NUMBER: why"
                self.findings.append(Finding(TABLE, line_number, what))

    def limit(self, path, name, number, usual):
        """How much is right at a place that has more than is usual."""
        key = (path, name)
        if number <= usual or key not in self.agreed:
            return usual
        self.used.add(key)
        return self.agreed[key][0]

    def stale(self):
        """What is wrong with the table itself, once all rules have asked."""
        return self.findings + [
            Finding(TABLE, line, f"{' '.join(key).strip()}: is not needed any more")
            for key, (_, line) in self.agreed.items()
            if key not in self.used
        ]
