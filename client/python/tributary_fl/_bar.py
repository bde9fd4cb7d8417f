# SPDX-License-Identifier: Apache-2.0
"""A progress bar, where somebody sees it and tqdm is installed."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Iterator


is_on = True  # Not where several programs share a terminal.


@contextlib.contextmanager
def progress_bar(what: str, steps: float) -> Iterator[Any]:
    """Gives tqdm's bar of so many steps, or None."""
    bar = None
    if is_on and sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            import tqdm

            total = int(steps) if steps != float("inf") else None
            bar = tqdm.tqdm(total=total, desc=what, unit="step", leave=False)
    try:
        yield bar
    finally:
        if bar is not None:
            bar.close()
