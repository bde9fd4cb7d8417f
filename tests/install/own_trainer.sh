#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in a fresh root file system (deb_test.sh): the example of a trainer in C++ takes part in a run.
set -eu
cd "$(mktemp -d)"
tail -n +2 /packages/table.csv > table.csv
client=(/packages/linear-client --data table.csv)
"${client[@]}" initial-weights linear.safetensors
fl-server --state server --listen 127.0.0.1:8444 --advertise 127.0.0.1:8444 --admin off \
  --model custom:linear --initial-weights linear.safetensors --rounds 3 --min-clients 1 &
server=$!
for ((i = 0; i < 300; ++i)); do
  if [ -e server/address.json ]; then break; fi
  sleep 0.1
done
"${client[@]}" --state client --join "$(fl-server --state server enroll --name a)"
wait $server
accepted=$(sqlite3 server/history.sqlite "SELECT count(*) FROM task WHERE state = 'accepted'")
if [ "$accepted" -ne 3 ]; then
  echo "$accepted updates were accepted, not 3" >&2
  exit 1
fi
