#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs build/deb/*.deb in fresh root file systems: programs, manual, completions, users and units
# are there, two clients train a round, as does a program built with libfl-client-dev; an upgrade keeps
# the state, remove keeps it, purge does not.
#
#   tests/install/deb_test.sh [RELEASE…]   releases of Debian that mmdebstrap can fetch: bookworm
#
# As root, in mount and network namespaces of its own. build/deb-test/RELEASE.tar keeps the fresh root
# file system for the next time.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=deploy/common.sh
. deploy/common.sh
[ "$(id -u)" -eq 0 ] || die "this test makes root file systems, which needs root"
packages=$PWD/build/deb work=$PWD/build/deb-test
mkdir -p "$work"

# in_root COMMAND…: in the root file system, with /proc and /dev, and without a network but loopback.
in_root() {
  # shellcheck disable=SC2016
  unshare --mount --net --pid --fork --kill-child sh -ec '
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/tmp"
    for device in null zero random urandom; do
      touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
    done
    ip link set lo up
    exec chroot "$root" "$@"' - "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "$@"
}

# try_services: the services under a systemd of their own. Some sandboxes let none boot.
# shellcheck disable=SC2016
try_services() {
  cp "$root/etc/tributary/server.toml" "$work/server.toml"
  unshare --mount --net --pid --fork --uts --ipc --kill-child sh -ec '
    root=$1
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs tmpfs "$root/tmp"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    ip link set lo up
    exec chroot "$root" env -i container=chroot /lib/systemd/systemd --log-target=null' - "$root" \
    > /dev/null 2>&1 < /dev/null &
  local parent=$! booted=no
  systemd=''
  for ((i = 0; i < 200; ++i)); do
    systemd=$(pgrep --parent "$parent" || true)
    if [ -n "$systemd" ] && in_systemd systemctl is-system-running > "$work/said.txt" 2>&1; then
      booted=yes
      break
    fi
    if grep -q -e degraded "$work/said.txt"; then
      booted=yes
      break
    fi
    sleep 0.2
  done
  if [ "$booted" = yes ]; then
    expect "the services start, reload, are restarted and stop" in_systemd bash /packages/services.sh
    if [ -e "$root/usr/lib/tributary/libfl-torch.so" ]; then
      in_systemd_s=900 expect "the tutorials are right, word for word" in_systemd bash /packages/tutorials.sh
    else
      say "$release: NO TUTORIAL WAS TRIED: they train a built-in model, and there is no tributary-torch"
    fi
  else
    say "$release: NO SERVICE WAS TRIED: systemd does not boot here: $(head -n 1 "$work/said.txt")"
  fi
  kill -KILL "$systemd" 2> /dev/null || true
  wait "$parent" 2> /dev/null || true
  cp "$work/server.toml" "$root/etc/tributary/server.toml"
}

# In the namespaces of the booted systemd. Uses the variable `systemd` of try_services.
in_systemd() {
  timeout --kill-after=5 "${in_systemd_s:-120}" nsenter --target "$systemd" --all --root --wd \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"
}

# make_root RELEASE: with what the packages depend on, so that the tests need no network.
make_root() {
  local include
  include=$(depends),man-db,bash-completion,procps,sqlite3,sudo,curl,hostname
  if ! [ -e "$work/$1.tar" ] || [ "$(cat "$work/$1.include" 2> /dev/null)" != "$include" ]; then
    say "making a fresh $1"
    rm -f "$work/$1.tar"
    mmdebstrap --variant=apt --include="$include" "$1" \
      "$work/part-$1.tar" http://deb.debian.org/debian > "$work/$1.log" 2>&1 || {
      tail -n 20 "$work/$1.log" >&2
      die "mmdebstrap could not make $1. If packages are missing there, the packages of build/deb" \
        "are for another release: run ./dev deb on $1"
    }
    mv "$work/part-$1.tar" "$work/$1.tar"
    echo "$include" > "$work/$1.include"
  fi
  rm -rf "$root"
  mkdir -p "$root"
  tar -C "$root" -xf "$work/$1.tar"
  mkdir -p "$root/packages"
  awk 'BEGIN { srand(1); print "a,b,y"; for (i = 0; i < 400; ++i) { a = rand(); b = rand(); print a "," b "," a + b } }' \
    > "$root/packages/table.csv"
}

# The packages outside that ours depend on, joined by commas.
depends() {
  for package in "$packages"/*.deb; do
    case $package in *libfl-*-dev*) continue ;; esac
    dpkg-deb --field "$package" Depends | tr ',' '\n'
  done | sed 's/^ *//; s/ .*//; s/:any//' | grep -v -e '^tributary' -e '^libfl-' | sort -u | paste -sd,
}

# later_revision: the same packages as a later revision, to upgrade to.
later_revision() {
  rm -rf "$work/later"
  mkdir -p "$work/later"
  for package in "$packages"/*.deb; do
    version=$(dpkg-deb --field "$package" Version)
    rm -rf "$work/unpacked"
    dpkg-deb --raw-extract "$package" "$work/unpacked"
    sed -i "s/$version/&+later/g" "$work/unpacked/DEBIAN/control"
    dpkg-deb -Znone --root-owner-group --build "$work/unpacked" "$work/later/$(basename "$package")" > /dev/null
  done
  rm -rf "$work/unpacked"
}

# build_trainer: examples/custom-trainer with the headers and the library of the packages.
build_trainer() {
  rm -rf "$work/dev" "$work/trainer"
  for package in "$packages"/libfl-*.deb; do dpkg-deb --extract "$package" "$work/dev"; done
  cmake -G Ninja -S examples/custom-trainer -B "$work/trainer" "-DTributary_DIR=$work/dev/usr/lib/cmake/Tributary" \
    > "$work/trainer.log" 2>&1 && ninja -C "$work/trainer" >> "$work/trainer.log" 2>&1 || {
    tail -n 30 "$work/trainer.log" >&2
    die "examples/custom-trainer does not build with libfl-client-dev, see above and $work/trainer.log"
  }
}

expect() {
  local what=$1
  shift
  "$@" > "$work/said.txt" 2>&1 || {
    cat "$work/said.txt" >&2
    die "$release: $what"
  }
  say "$release: $what"
}

# The commands that run inside are in single quotes. shellcheck disable=SC2016
try_release() {
  release=$1 root=$work/$1
  make_root "$release"
  cp "$packages"/*.deb "$root/packages/"
  rm -f "$root"/packages/libfl-*-dev_*
  expect "the packages install" in_root sh -c 'dpkg --install /packages/*.deb'
  expect "the programs start" in_root sh -ec 'for p in server client sim; do fl-$p --version; done'
  expect "the users are there" in_root sh -ec '
    id tributary-client
    [ "$(stat -c "%U %a" /var/lib/tributary/server)" = "tributary-server 700" ]'
  expect "the units are right" in_root sh -ec '
    command -v systemd-analyze > /dev/null || { echo "no systemd here" >&2; exit 1; }
    systemd-analyze verify --man=no fl-server.service fl-client@x.service'
  expect "the manual and the completions are there" in_root bash -ec '
    for p in server client sim; do
      test -s /usr/share/man/man1/fl-$p.1.gz
      . /usr/share/bash-completion/completions/fl-$p
    done'
  expect "the Python package codes a vector" in_root python3 -c '
import numpy, tributary_fl, tributary_fl.codec as codec
vector = numpy.arange(100, dtype=numpy.float32)
assert (codec.decode(codec.encode("lossless", vector), 100) == vector).all()'
  if [ -e "$root/usr/lib/tributary/libfl-torch.so" ]; then
    expect "the built-in models find their libraries" in_root sh -ec '
      fl-sim --version
      /usr/lib/tributary/fl-rank --version
      mkdir /tmp/sim
      fl-sim --state /tmp/sim/state --model linear:2-1 --data csv:/packages/table.csv,target=y \
        --clients 2 --rounds 2 --local-steps 5'
  fi
  cp tests/install/{two_clients,own_trainer,services,tutorials}.sh "$work/trainer/linear-client" "$root/packages/"
  mkdir -p "$root/packages/source/docs" "$root/packages/source/tests"
  cp -r docs/guide "$root/packages/source/docs/"
  cp -r tests/process "$root/packages/source/tests/"
  try_services
  expect "two clients train" in_root bash /packages/two_clients.sh
  expect "a trainer in C++ trains with libfl-client" in_root bash /packages/own_trainer.sh
  cp "$work"/later/*.deb "$root/packages/"
  rm -f "$root"/packages/libfl-*-dev_*
  echo '# of the administrator' >> "$root/etc/tributary/server.toml"
  expect "an upgrade keeps the state and the configuration" in_root sh -ec '
    dpkg --install /packages/*.deb
    dpkg-query -W -f "\${Version}\n" tributary-server | grep -q later
    test -s /var/lib/tributary/server/history.sqlite
    grep -q "of the administrator" /etc/tributary/server.toml
    fl-server --state /var/lib/tributary/server history --runs'
  expect "remove keeps the state" in_root sh -ec '
    apt-get remove --yes tributary-server tributary-client tributary-sim
    ! command -v fl-server
    test -s /var/lib/tributary/server/history.sqlite
    test -d /var/lib/tributary/client-a
    test -s /etc/tributary/server.toml'
  expect "purge removes it" in_root sh -ec '
    dpkg --purge tributary-server tributary-client
    ! test -e /var/lib/tributary
    ! test -e /etc/tributary'
  rm -rf "$root"
}

later_revision
build_trainer
for release in "${@:-bookworm}"; do try_release "$release"; done
say "all is well"
