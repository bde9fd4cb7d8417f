#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in a fresh root file system (deb_test.sh): the programs as their services start them, with
# the users and the folders of the units, and a manager's socket that nobody reads.
set -eu
as() { runuser --user "$1" -- "${@:2}"; }
state=/var/lib/tributary
mkdir -p $state
for part in server client-a client-b; do
  install -d -o "tributary-${part%%-*}" -m 0700 "$state/$part"
done
cat >> /etc/tributary/server.toml << 'END'
model = "synthetic:1000"
rounds = 3
min-clients = 2
listen = "127.0.0.1:8443"
END
sed -i 's/^stay = true/stay = false/' /etc/tributary/server.toml

as tributary-server fl-server --config /etc/tributary/server.toml --state $state/server &
server=$!
for ((i = 0; i < 300; ++i)); do
  if [ -e $state/server/address.json ]; then break; fi
  sleep 0.1
done
clients=()
for name in a b; do
  as tributary-server fl-server --state $state/server enroll --name $name > /etc/tributary/$name.token
  chown tributary-client /etc/tributary/$name.token
  chmod 0600 /etc/tributary/$name.token
  echo "join-file = \"/etc/tributary/$name.token\"" > /etc/tributary/$name.toml
  as tributary-client fl-client --config /etc/tributary/$name.toml --state $state/client-$name &
  clients+=($!)
done
wait "${clients[@]}"
wait $server
rm /etc/tributary/[ab].*
accepted=$(sqlite3 $state/server/history.sqlite "SELECT count(*) FROM task WHERE state = 'accepted'")
if [ "$accepted" -ne 6 ]; then
  echo "$accepted updates were accepted, not 6" >&2
  exit 1
fi
