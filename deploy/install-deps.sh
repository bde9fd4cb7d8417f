#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages that Tributary needs and that are missing. For Debian 12 and later, and Ubuntu
# 24.04 and later.
#
#   deploy/install-deps.sh                   what is needed to build, to test and to run the demo
#   deploy/install-deps.sh --also PACKAGE…   the same and these packages
#   deploy/install-deps.sh PACKAGE…          these packages only, for a tool that one command needs
#   deploy/install-deps.sh --libraries       prints the packages of the libraries that programs link
#
# PACKAGE? is a package that may be missing: it is installed where apt offers it.
set -eu
# shellcheck source=deploy/common.sh
. "$(dirname "$0")/common.sh"

boost_min=108100 # BOOST_VERSION of 1.81, the first with the parts of Asio that we use.

# Boost is chosen below.
libraries=(
  libssl-dev libsqlite3-dev libprotobuf-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libtomlplusplus-dev
  libcli11-dev libxxhash-dev zlib1g-dev libcsv-dev libturbojpeg0-dev libpng-dev libutf8proc-dev
)
packages=(
  # The toolchain, and the tools that fetch libtorch.
  g++ cmake ninja-build ccache git ca-certificates python3 python3-venv unzip
  protobuf-compiler
  # Tests, benchmarks and the demo's data.
  doctest-dev sqlite3 curl dataset-fashion-mnist
  "${libraries[@]}"
)

# offered PACKAGE: whether apt has it in its lists.
offered() { apt-cache show "$1" > /dev/null 2>&1; }

# missing PACKAGE…: prints those that are not installed, one per line.
missing() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2> /dev/null |
    sed -n 's/^installed //p')
  printf '%s\n' "$@" | grep -Fxv -e "$installed" || true
}

# Prints the BOOST_VERSION of the newest Boost headers on this machine; 0 without any.
boost_version() {
  local header version best=0
  for header in /usr/include/boost/version.hpp /usr/local/include/boost/version.hpp; do
    [ -r "$header" ] || continue
    version=$(awk '/^#define BOOST_VERSION / { print $3 }' "$header")
    if [ "$version" -gt "$best" ]; then best=$version; fi
  done
  echo "$best"
}

# Prints the package of the oldest available Boost that is new enough, because that is closest to what
# we test with. libboost-dev would be wrong: on Debian 12 it is Boost 1.74.
boost_package() {
  apt-cache --names-only search '^libboost1\.[0-9]+-dev$' | awk '{ print $1 }' | sort -V |
    awk -F '[.-]' '$2 >= 81 { print; exit }'
}

if [ "${1:-}" = --libraries ]; then
  printf '%s\n' "${libraries[@]}" "$(boost_package)"
  exit 0
fi

# apt ARGUMENT…: runs apt-get and prints its output only if it fails.
apt() {
  local output
  output=$("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get --quiet \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 "$@" 2>&1) || {
    printf '%s\n' "$output" | tail -n 30 >&2
    return 1
  }
}

# The full list includes Boost, unless the installed one is new enough.
want_boost=no
wanted=$*
if [ $# -eq 0 ] || [ "$1" = --also ]; then
  set -- "${packages[@]}" "${@:2}"
  boost=$(boost_version)
  if [ "$boost" -lt "$boost_min" ]; then want_boost=yes; fi
fi
read -ra absent <<< "$(missing "${@%\?}" | paste -sd " " -)"
optional=" "
for package; do
  if [ "$package" != "${package%\?}" ]; then optional+="${package%\?} "; fi
done

# Leaves out of `absent` the packages that may be missing and that apt does not offer. Before apt
# has its lists for the first time, this is not known.
leave_out() {
  local package kept=()
  offered g++ || return 0
  for package in "${absent[@]}"; do
    if [[ $optional != *" $package "* ]] || offered "$package"; then kept+=("$package"); fi
  done
  absent=("${kept[@]}")
}

# fail WORD…: ends with an error; ends without one if only optional packages are missing.
fail() {
  local package
  for package in "${absent[@]}"; do
    [[ $optional = *" $package "* ]] || die "$@"
  done
  [ "$want_boost" = no ] || die "$@"
  say "going on without ${absent[*]}: $*"
  exit 0
}

leave_out
if [ "${#absent[@]}" -eq 0 ] && [ "$want_boost" = no ]; then exit 0; fi

command -v apt-get > /dev/null ||
  die "no apt-get here. Install these (or their like), and Boost 1.81 or later: ${absent[*]}"
if [ "$want_boost" = yes ] && [ "$boost" -gt 0 ]; then
  die "Boost $((boost / 100000)).$((boost / 100 % 1000)) is installed and Tributary needs 1.81 or" \
    "later; two versions' headers can't be installed at once. Remove the old one first:" \
    "apt-get remove $(dpkg-query -S /usr/include/boost/version.hpp 2> /dev/null | cut -d: -f1)"
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  sudo=(sudo)
  command -v sudo > /dev/null ||
    fail "installing packages needs root, and there is no sudo here. As root, run:" \
      "$0${wanted:+ $wanted}"
fi

say "updating the package lists"
apt update || fail "apt could not update its package lists (see above): is the network up?"
leave_out
if [ "$want_boost" = yes ]; then
  boost=$(boost_package)
  [ -n "$boost" ] || die "apt offers no Boost 1.81 or later: use Debian 12, Ubuntu 24.04 or later"
  absent+=("$boost")
fi
for package in "${absent[@]}"; do
  offered "$package" ||
    die "apt offers no package $package: use Debian 12, Ubuntu 24.04 or later, and on Ubuntu" \
      "enable the component universe"
done

[ "${#absent[@]}" -gt 0 ] || exit 0

say "installing ${absent[*]}"
apt install --yes --no-install-recommends "${absent[@]}" ||
  fail "apt could not install these packages; what it printed above says why"
