#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# client_image_test.sh ROOT: in the root file system of the CPU client's image, two clients train a
# built-in model on a table, and then two trainers in Python a model of their own: read-only, without
# rights, in a network of its own. FL_BIN names the folder of fl-server. As root.
set -eu
# shellcheck source=deploy/common.sh
. "$(dirname "$0")/../../deploy/common.sh"
root=$(realpath "$1") server=$(realpath "$FL_BIN/fl-server")
[ "$(id -u)" -eq 0 ] || die "this test makes namespaces, which needs root"
[ -e "$root/usr/bin/fl-client" ] || die "$root has no fl-client"
if [ -e "$root/packages" ] || [ -e "$root/usr/bin/fl-server" ]; then die "the image has more than a client"; fi
say "the client's image has $(($(du --summarize --bytes "$root" | cut -f1) / 1000000)) MB"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work"/{data,state}
awk 'BEGIN { srand(1); print "a,b,y"; for (i = 0; i < 400; ++i) { a = rand(); b = rand(); print a "," b "," a + b } }' \
  > "$work/data/table.csv"
cat > "$work/data/line.py" << 'END'
import numpy as np
import tributary_fl as fl
from tributary_fl.numpy import Trainer

table = np.loadtxt("/data/table.csv", delimiter=",", skiprows=1, dtype=np.float32)
x, y = table[:, :2], table[:, 2]


class Line(Trainer):
    def train(self, weights, task):
        error = x @ weights["w"] - y
        weights["w"] -= 0.5 * x.T @ error / len(y)
        return fl.TrainReport(steps=1, loss=np.square(error).mean())


fl.run(Line({"w": np.zeros(2, np.float32)}, len(y)))
END
chown -R 10001:10001 "$work/state"
chmod 0755 "$work" "$work/data"

# shellcheck disable=SC2016
unshare --mount --net --pid --fork --kill-child bash -euc '
  root=$1 work=$2 server=$3
  ip link set lo up
  mount --bind "$root" "$root"
  mkdir -p "$root/data"
  mount --bind "$work/data" "$root/data"
  mount --bind "$work/state" "$root/var/lib/tributary"
  mount -o remount,bind,ro "$root"
  mount -t proc proc "$root/proc"
  for folder in tmp var/tmp; do mount -t tmpfs tmpfs "$root/$folder"; done
  if touch "$root/written" 2> /dev/null; then echo "the root can be written" >&2; exit 1; fi
  state=/var/lib/tributary
  in_image() { chroot --userspec=10001:10001 "$root" env -i PATH=/usr/bin:/bin HOME=$state /usr/bin/fl-client "$@"; }

  # federation NAME ARGUMENTS OF THE SERVER… -- ARGUMENTS OF THE CLIENTS…
  federation() {
    local name=$1 flags=() clients=() ended=0
    shift
    while [ "$1" != -- ]; do flags+=("$1"); shift; done
    shift
    "$server" --state "$work/$name" --listen 127.0.0.1:0 --admin off --rounds 3 --min-clients 2 "${flags[@]}" \
      > "$work/$name.out" 2> "$work/$name.log" &
    local program=$!
    for ((i = 0; i < 300; ++i)); do
      if [ -e "$work/$name/address.json" ]; then break; fi
      sleep 0.1
    done
    for each in a b; do
      "$server" --state "$work/$name" enroll --name $each > "$work/state/$name-$each.token"
      chown 10001:10001 "$work/state/$name-$each.token"
      chmod 0600 "$work/state/$name-$each.token"
      in_image --state $state/$name-$each --join-file $state/$name-$each.token "$@" 2> "$work/$name-$each.log" &
      clients+=($!)
    done
    wait "${clients[@]}" || ended=1
    wait $program || ended=1
    grep -q "the run is over" "$work/$name.log" || ended=1
    if [ $ended -ne 0 ]; then tail "$work/$name"*log >&2; exit 1; fi
  }
  federation table --model linear:2-1 -- --data csv:/data/table.csv,target=y
  trainer=(--trainer "python3 /data/line.py")
  in_image --state $state/maker "${trainer[@]}" initial-weights $state/line.safetensors
  federation line --model custom:line --initial-weights "$work/state/line.safetensors" -- "${trainer[@]}"
' - "$root" "$work" "$server" || die "the clients did not train in the image, see above"
say "clients with a built-in model and with trainers in Python ran in the image: read-only, as user 10001"
