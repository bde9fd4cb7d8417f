#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make-venv.sh FOLDER [REQUIREMENTS]: a virtual environment with the packages of that file, by default
# deploy/requirements-tests.txt and requirements-browser.txt. Made once; again when a file has changed.
set -eu
folder=$1
deploy=$(cd "$(dirname "$0")/../.." && pwd)/deploy
requirements=${2:-$deploy/requirements-tests.txt}
alone=/dev/null  # Packages that are installed without those that they name.
[ $# -gt 1 ] || alone=$deploy/requirements-browser.txt
python=${FL_PYTHON:-/usr/bin/python3}

if cat "$requirements" "$alone" | cmp -s - "$folder/made-from.txt"; then exit 0; fi
# Packages that it lends to tests (a PyTorch) would be taken for installed here.
unset PYTHONPATH
rm -rf "$folder"
"$python" -m venv "$folder" || {
  echo "make-venv.sh: $python can't make a virtual environment: install the package python3-venv" >&2
  exit 1
}
"$folder/bin/pip" install --quiet --disable-pip-version-check --only-binary=:all: \
  -r "$requirements" &&
  "$folder/bin/pip" install --quiet --disable-pip-version-check --only-binary=:all: --no-deps -r "$alone" || {
  echo "make-venv.sh: the packages of $requirements could not be installed (see above): is PyPI" \
    "within reach? PIP_INDEX_URL names a mirror. Tests that need them can't run." >&2
  exit 1
}
# Last, so that an interrupted run is repeated.
cat "$requirements" "$alone" > "$folder/made-from.txt"
