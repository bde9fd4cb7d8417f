#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a federation on this machine: one fl-server, ten fl-clients and an evaluator, connected by TLS. They
# train on all of Fashion-MNIST, divided non-IID (Dirichlet 0.5). A page in the browser shows it live.
# ./dev demo builds and runs this.
#
#   examples/demo.sh [BIN] [fl-server flags …]       BIN: folder of the programs (default: build/bin)
set -eu
cd "$(dirname "$0")/.."
bin=${1:-build/bin}
[ $# -gt 0 ] && shift
clients=10
work=demo
state=$work/server

rm -rf "$work"
mkdir -p "$work"
pids=
trap 'kill $pids 2>/dev/null || true' EXIT
trap 'exit 129' HUP  # The programs read their settings again at this signal.
trap 'exit 130' INT TERM

echo "Starting fl-server, $clients clients and an evaluator. Logs: $work/*.log"
begin=$(date +%s)
"$bin/fl-server" --state "$state" --listen 127.0.0.1:0 --admin 127.0.0.1:0 --ready-file "$work/ready.json" \
  --model lenet --rounds 16 --min-clients $clients --local-epochs 2 --batch-size 64 --lr 0.04 --momentum 0.9 \
  --seed 1 "$@" > "$work/server.out" 2> "$work/server.log" &
server=$!
pids=$server

i=0
while [ ! -f "$work/ready.json" ]; do
  i=$((i + 1))
  if [ $i -gt 100 ] || ! kill -0 $server 2>/dev/null; then
    echo "fl-server did not start:" >&2
    cat "$work/server.log" >&2
    exit 1
  fi
  sleep 0.1
done

i=1
while [ $i -le $clients ]; do
  token=$("$bin/fl-server" enroll --state "$state" --name "site-$i")
  "$bin/fl-client" --state "$work/site-$i" --join "$token" --data fashion-mnist --partition dirichlet:0.5 \
    --shard $i/$clients --threads 1 > "$work/site-$i.log" 2>&1 &
  pids="$pids $!"
  i=$((i + 1))
done
token=$("$bin/fl-server" enroll --state "$state" --name evaluator --role evaluator)
"$bin/fl-client" --state "$work/evaluator" --join "$token" --data fashion-mnist:test --evaluate-only --threads 1 \
  > "$work/evaluator.log" 2>&1 &
pids="$pids $!"

page=$(sed -n 's/.*"admin":"\([^"]*\)".*/\1/p' "$work/ready.json")
echo "Watch it at  http://$page/"

# Shows where the log is: in one line that is written again and again, or where nobody watches, in a
# line for each version. Done in the shell, as an awk may hold lines back.
watch_log() {
  done=0 all=1 state="waiting for clients" metric=
  while read -r _ _ text; do
    is_version=
    place=${text#round }
    place=${place%%:*}
    case $text in
      "waiting for "*" clients"*) state=$text ;;
      "round "*/*": asked "*) state="round ${place%/*} of ${place#*/}" ;;
      "round "*/*": "*" updates"*) done=${place%/*} all=${place#*/} ;;
      "version "*": "*)
        is_version=1
        metric=", ${text#*: }"
        metric=${metric%% (*}
        ;;
    esac
    bar=
    i=0
    while [ $i -lt 24 ]; do
      if [ $((i * all)) -lt $((24 * done)) ]; then bar="$bar#"; else bar="$bar."; fi
      i=$((i + 1))
    done
    if [ -n "$1" ]; then
      printf '\r\033[K  %.*s' $((COLUMNS - 3)) "[$bar] $state$metric"
    elif [ -n "$is_version" ]; then
      echo "  [$bar] $state$metric"
    fi
  done
}
live=
if [ -t 1 ]; then
  live=1
  COLUMNS=$(stty size 2> /dev/null < /dev/tty | cut -d " " -f 2)
  [ "${COLUMNS:-0}" -gt 20 ] || COLUMNS=80
fi
tail -n +1 -f "$work/server.log" 2>/dev/null | watch_log "$live" &
viewer=$!
code=0
wait $server || code=$?
sleep 0.2
kill $viewer 2>/dev/null || true
[ -z "$live" ] || echo
if [ $code -ne 0 ]; then
  echo "fl-server ended with $code:" >&2
  tail -n 20 "$work/server.log" >&2
  exit $code  # The trap stops the clients, which would try to reconnect forever.
fi
pids=
wait 2>/dev/null || true
grep -E '^(round |[0-9]|total|history|checkpoints)' "$work/server.out"
echo "seconds      $(($(date +%s) - begin))"
if "$bin/fl-server" history --help | grep -q -e --plot; then
  "$bin/fl-server" history --state "$state" --plot "$work/accuracy.svg" > /dev/null
  echo "plot         $work/accuracy.svg: the accuracy over bytes"
fi
cat <<EOF

Try next:
  $bin/fl-server history --state $state               the rounds (--json, --csv)
  sqlite3 $state/history.sqlite 'SELECT * FROM round_summary'
  $bin/fl-server clients --state $state               the clients
  ./dev demo --codec none                             the same without compression
  $bin/fl-server --help                               all flags, for your own federation
EOF
