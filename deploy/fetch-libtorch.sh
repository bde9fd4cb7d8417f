#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Downloads libtorch to build/libtorch or to the folder that is named, in the layout of the wheels
# (torch/lib beside nvidia/*/lib, which their run paths expect). Does nothing if it is there already.
#
# libtorch comes from the torch wheel of the Python package index that pip uses. After unpacking no
# Python is needed. FL_TORCH_CUDA=1 adds the CUDA part (about 3 GB more to download). The wheels and
# their digests are in libtorch.txt and libtorch-cuda.txt in this folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=deploy/common.sh
. "$here/common.sh"

target=${1:-$(dirname "$here")/build/libtorch}
temporary=$target.part
tries_max=4

wheels=("$here/libtorch.txt")
headers=(torch)
libraries=(torch/lib/lib{c10,torch_cpu,torch}.so 'torch/lib/libgomp*'
  'nvidia/cu13/lib/libcupti.so*' 'nvidia/cu13/lib/libcudart.so*')
disk_gib=6
if [ "${FL_TORCH_CUDA:-0}" = 1 ]; then
  wheels+=("$here/libtorch-cuda.txt")
  headers+=('nvidia/*')
  libraries=('torch/lib/*.so*' 'nvidia/*/lib/*.so*')
  disk_gib=16
fi

# The stamp file lists the wheels that were unpacked. With CUDA the list starts with the CPU wheels.
stamp=$target/wheels.txt
wanted=$(cat "${wheels[@]}")
case $(cat "$stamp" 2> /dev/null) in "$wanted"*) exit 0 ;; esac

need_machine
mkdir -p "$(dirname "$target")"
need_disk "$(dirname "$target")" "$disk_gib"
rm -rf "$temporary"
mkdir -p "$temporary/wheels" "$temporary/root"
trap 'rm -rf "$temporary"' EXIT

python=python3
if ! "$python" -m pip --version > /dev/null 2>&1; then
  "$python" -m venv "$temporary/venv" ||
    die "python3 has neither pip nor venv: run deploy/install-deps.sh"
  python=$temporary/venv/bin/python
fi

# Take the same wheels with every version of Python; pip checks the digests.
platforms=(--platform manylinux2014_x86_64)
for minor in 17 18 24 25 26 27 28; do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
download() {
  "$python" -m pip download --quiet --no-cache-dir --disable-pip-version-check --no-deps \
    --require-hashes --only-binary=:all: --implementation cp --python-version 3.11 \
    "${platforms[@]}" --dest "$temporary/wheels" --requirement "$1"
}

for list in "${wheels[@]}"; do
  say "downloading $(sed -n 's/^\([a-z].*==[^ ]*\).*/\1/p' "$list" | paste -sd " " -)"
  try=1
  until download "$list"; do
    [ "$try" -lt "$tries_max" ] ||
      die "the download failed $tries_max times. Set pip up for an index that has these wheels" \
        "(PIP_INDEX_URL), or unpack a libtorch yourself and run FL_LIBTORCH=/its/path ./dev build"
    sleep $((5 * try))
    try=$((try + 1))
    say "trying again ($try of $tries_max)"
  done
done

say "unpacking into $target"
patterns=("${libraries[@]}")
for folder in "${headers[@]}"; do patterns+=("$folder/include/*"); done
for wheel in "$temporary"/wheels/*.whl; do
  status=0
  unzip -q -o "$wheel" "${patterns[@]}" '*/licenses/*' '*LICENSE*' -d "$temporary/root" \
    > /dev/null 2>&1 || status=$?
  # Status 11: some pattern matched nothing. Every wheel has such patterns.
  [ "$status" -eq 0 ] || [ "$status" -eq 11 ] ||
    die "unzip failed with status $status on $(basename "$wheel"): is the disk full?"
  rm "$wheel"
done

if unresolved=$(ldd "$temporary/root/torch/lib/libtorch_cpu.so" | grep 'not found'); then
  die "the unpacked libtorch lacks libraries: $unresolved"
fi
cat "${wheels[@]}" > "$temporary/root/wheels.txt"
rm -rf "$target"
mv "$temporary/root" "$target"
