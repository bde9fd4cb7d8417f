#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# image_test.sh ROOT: the root file system of the server's image is small and has no shell, and the
# server runs a federation in it: read-only, without rights, with a state folder of its own, in a
# network of its own. FL_BIN names the folder of fl-client. As root.
set -eu
# shellcheck source=deploy/common.sh
. "$(dirname "$0")/../../deploy/common.sh"
bytes_max=60000000
root=$(realpath "$1") client=$(realpath "$FL_BIN/fl-client")
[ "$(id -u)" -eq 0 ] || die "this test makes namespaces, which needs root"

bytes=$(du --summarize --bytes "$root" | cut -f1)
[ "$bytes" -lt $bytes_max ] || die "the image has $bytes bytes, more than $bytes_max"
say "the image has $((bytes / 1000000)) MB"

found=$(find "$root" \( -name '*sh' -o -name 'busybox*' -o -perm /6000 \) -type f)
[ -z "$found" ] || die "the image has a shell, or a file that gives rights: $found"
[ "$(find "$root/usr/bin" -type f)" = "$root/usr/bin/fl-server" ] || die "the image has other programs"

state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir "$state/server"
chown -R 10001:10001 "$state/server"
chmod 0711 "$state"

# shellcheck disable=SC2016
unshare --mount --net --pid --fork --kill-child bash -euc '
  root=$1 state=$2 client=$3
  ip link set lo up
  mount --bind "$root" "$root"
  mount --bind "$state/server" "$root/var/lib/tributary"
  mount -o remount,bind,ro "$root"
  in_image() { chroot --userspec=10001:10001 "$root" /usr/bin/fl-server "$@"; }
  if touch "$root/written" 2> /dev/null; then echo "the root can be written" >&2; exit 1; fi
  TZ=Asia/Kolkata in_image --state /var/lib/tributary/server --model synthetic:1000 --rounds 3 \
    --min-clients 2 --listen 127.0.0.1:8443 --quiet 00:00-24:00=1gbit > "$state/out" 2> "$state/log" &
  server=$!
  for ((i = 0; i < 300; ++i)); do
    if [ -e "$state/server/server/address.json" ]; then break; fi
    sleep 0.1
  done
  # Ready a moment after it listens.
  answer=
  for ((i = 0; i < 300; ++i)); do
    exec 3<> /dev/tcp/127.0.0.1/8080
    printf "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n" >&3
    answer=$(cat <&3)
    if [[ $answer = *"200 OK"* ]]; then break; fi
    sleep 0.1
  done
  if [[ $answer != *"200 OK"* ]]; then echo "/readyz: $answer" >&2; exit 1; fi
  clients=()
  for name in a b; do
    in_image --state /var/lib/tributary/server enroll --name $name > "$state/$name.token"
    "$client" --state "$state/$name" --join-file "$state/$name.token" 2> "$state/$name.log" &
    clients+=($!)
  done
  if ! wait "${clients[@]}" || ! wait $server; then tail "$state"/*log >&2; exit 1; fi
  grep -q "the run is over" "$state/log"
  grep -q "here it is ..:.., UTC+05:30" "$state/log"
' - "$root" "$state" "$client" || die "the server did not run a federation in the image, see above"
say "a federation ran in the image: read-only, as user 10001, without a shell"
