#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does a new user's first command work on a bare machine? Makes a minimal system in a folder, clones
# HEAD into it, runs ./dev there as root, and prints how long it took.
#
#   tests/fresh-machine.sh [COMMAND [FOLDER]]     COMMAND: what follows ./dev, default "test"
#   FL_FRESH_SUITE=trixie                         this release, from the host's own mirror; default:
#                                                 the host's release
#
# FOLDER must not exist yet, and is kept; without one a temporary folder is made and removed. What
# this host was told about its network (apt's sources, pip's settings, proxies, certificates) is
# copied as it is. Needs root and debootstrap.
set -eu
repository=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=deploy/common.sh
. "$repository/deploy/common.sh"

[ "$(id -u)" -eq 0 ] || die "a chroot needs root: sudo $0 $*"
command -v debootstrap > /dev/null || die "no debootstrap here: apt-get install debootstrap"

# In a mount namespace of our own every mount below ends with this script, however it ends.
if [ "${FL_FRESH_NAMESPACE:-}" != 1 ]; then
  FL_FRESH_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
fi

read -ra arguments <<< "${1:-test}"
if [ $# -ge 2 ]; then
  [ ! -e "$2" ] || die "$2 exists already: remove it, or name another folder"
  mkdir -p "$2"
  root=$(cd "$2" && pwd)
else
  root=$(mktemp -d "${TMPDIR:-/tmp}/fresh-machine.XXXXXX")
  # If something is still mounted inside, it is another file system, and is not touched. shellcheck
  # disable=SC2317 # The trap calls it.
  clean_up() {
    umount -l "$root/dev" "$root/proc" 2> /dev/null || true
    rm -rf --one-file-system "$root"
  }
  trap clean_up EXIT
fi
chmod 755 "$root" # For apt's own user.
need_disk "$root" 8

own=$(. /etc/os-release && echo "$VERSION_CODENAME")
suite=${FL_FRESH_SUITE:-$own}
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $own" | head -n 1)
[ -n "$mirror" ] || die "apt has no source for $own"

say "making a minimal $suite in $root"
log=$(debootstrap --variant=minbase "$suite" "$root" "$mirror" 2>&1) ||
  die "debootstrap failed: $(tail -n 3 <<< "$log")"

# carry PATH…: copies those that this host has to the same place inside.
carry() {
  local path
  for path in "$@"; do
    [ -e "$path" ] || continue
    mkdir -p "$root$(dirname "$path")"
    rm -rf "${root:?}$path"
    cp -aL "$path" "$root$path"
  done
}
carry /etc/apt /usr/share/keyrings /etc/resolv.conf /etc/hosts \
  /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates \
  /etc/pip.conf /etc/xdg/pip /root/.pip /root/.config/pip
find "$root/etc/apt" \( -name '*.list' -o -name '*.sources' \) -exec sed -i "s/\b$own\b/$suite/g" {} +
for place in ${PIP_FIND_LINKS:-}; do
  if [ -d "$place" ]; then carry "$place"; fi
done
mapfile -t settings < <(env |
  grep -E '^(PIP_[A-Z_]+|[A-Za-z]+_(proxy|PROXY)|SSL_CERT_[A-Z]+|[A-Z]+_CA_BUNDLE|FL_TEST_QUICK)=')

mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
git -c safe.directory="$repository/.git" clone --quiet "file://$repository" "$root/root/tributary"

say "running ./dev ${arguments[*]}"
start=$SECONDS
status=0
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
chroot "$root" env -i HOME=/root LANG=C.UTF-8 PATH="$path" "${settings[@]}" \
  bash -c 'cd /root/tributary && exec ./dev "$@"' dev "${arguments[@]}" || status=$?
say "./dev ${arguments[*]} ended with status $status after $((SECONDS - start)) s"
exit "$status"
