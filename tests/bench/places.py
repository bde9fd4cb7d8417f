# SPDX-License-Identifier: Apache-2.0
"""Where a benchmark finds the programs (FL_BIN, by default build/bin) and the sources. To import it
makes the modules of tests/process and of examples/cross-datacenter ready for import, too."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
BIN = pathlib.Path(os.environ.setdefault("FL_BIN", str(SOURCE / "build/bin")))
os.environ.setdefault("FL_SOURCE", str(SOURCE))
for folder in ("tests/process", "examples/cross-datacenter"):
    sys.path.insert(0, str(SOURCE / folder))
