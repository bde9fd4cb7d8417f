# SPDX-License-Identifier: Apache-2.0
"""To be imported first by a test that needs PyTorch: without it the test is skipped."""

import importlib.util
import sys

for module in "numpy", "torch":
    if importlib.util.find_spec(module) is None:
        print(f"SKIPPED: {sys.executable} has no {module} (the packages python3-torch, python3-numpy)")
        sys.exit(77)  # What ctest takes for skipped.
