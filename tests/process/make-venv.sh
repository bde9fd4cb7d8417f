#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make-venv.sh FOLDER [REQUIREMENTS]: a virtual environment with the packages of that file, by default
# deploy/requirements-tests.txt. Made once; again when the file has changed.
set -eu
folder=$1
requirements=${2:-$(cd "$(dirname "$0")/../.." && pwd)/deploy/requirements-tests.txt}
python=${FL_PYTHON:-/usr/bin/python3}

if cmp -s "$requirements" "$folder/made-from.txt"; then exit 0; fi
# What it lends to tests (a PyTorch) would be taken for installed here.
unset PYTHONPATH
rm -rf "$folder"
"$python" -m venv "$folder" || {
  echo "make-venv.sh: $python can't make a virtual environment: install the package python3-venv" >&2
  exit 1
}
"$folder/bin/pip" install --quiet --disable-pip-version-check --only-binary=:all: \
  -r "$requirements" || {
  echo "make-venv.sh: the packages of $requirements could not be installed (see above): is PyPI" \
    "within reach? PIP_INDEX_URL names a mirror. Tests that need them can't run." >&2
  exit 1
}
# Last, so that an interrupted run is repeated.
cp "$requirements" "$folder/made-from.txt"
