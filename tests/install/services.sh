#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in a fresh root file system in which systemd has booted (deb_test.sh): the services start, tell
# how they are, take SIGHUP, are restarted when they hang, and end cleanly.
set -eu
fail() {
  echo "services.sh: $*" >&2
  systemctl status --no-pager -n 20 fl-server fl-client@hospitals >&2 || true
  exit 1
}
# eventually WHAT COMMAND…
eventually() {
  for ((i = 0; i < 300; ++i)); do
    if "${@:2}" > /dev/null 2>&1; then return; fi
    sleep 0.1
  done
  fail "$1"
}
log_has() { journalctl --no-pager -o cat -u "$1" | grep -q -- "$2"; }
status_has() { systemctl show -P StatusText "$1" | grep -q -- "$2"; }
is_another() { [ "$(systemctl show -P MainPID fl-server)" != "$1" ] && systemctl is-active -q fl-server; }

# A root that is no mount of its own allows no user namespaces. Three minutes are too long for a test.
mkdir -p /etc/systemd/system/fl-{server,client@}.service.d
printf '[Service]\nPrivateUsers=no\nWatchdogSec=4\n' > /etc/systemd/system/fl-server.service.d/test.conf
printf '[Service]\nPrivateUsers=no\n' > /etc/systemd/system/fl-client@.service.d/test.conf
cat > /etc/tributary/server.toml << 'END'
model = "synthetic:1000"
min-clients = 1
rounds = 1000000
listen = "127.0.0.1:8443"
END
systemctl daemon-reload
systemctl start fl-server || fail "the server does not start"
runuser --user tributary-server -- fl-server --state /var/lib/tributary/server enroll --name a \
  > /etc/tributary/hospitals.token
chown tributary-client /etc/tributary/hospitals.token
chmod 0600 /etc/tributary/hospitals.token
echo 'join-file = "/etc/tributary/hospitals.token"' > /etc/tributary/hospitals.toml
systemctl start fl-client@hospitals || fail "the client does not start"
eventually "no round" log_has fl-client@hospitals "round 3: update accepted"
eventually "the server tells no status" status_has fl-server "^round [0-9]*/1000000"
eventually "the client tells no status" status_has fl-client@hospitals "^client 'a' of 127.0.0.1:8443"
log_has fl-server flj1 && fail "a join token is in the journal"

echo 'verbose = true' >> /etc/tributary/server.toml
systemctl reload fl-server || fail "the server can't be reloaded"
eventually "no line about the reload" log_has fl-server "changed: the log has more lines"

before=$(systemctl show -P MainPID fl-server)
kill -STOP "$before"
eventually "a server that hangs is not started again" is_another "$before"
eventually "the client does not come back" log_has fl-server "a .*joined\|asked 1 of 1"

# docs/guide/install.md, "Port 443".
sed -i 's/^listen = .*/listen = "127.0.0.1:443"/' /etc/tributary/server.toml
systemctl restart fl-server 2> /dev/null && fail "the server took port 443 without the right to"
eventually "no line about the right to port 443" log_has fl-server "may not take ports below 1024"
printf '[Service]\nAmbientCapabilities=%s\nCapabilityBoundingSet=%s\n' CAP_NET_BIND_SERVICE CAP_NET_BIND_SERVICE \
  > /etc/systemd/system/fl-server.service.d/port.conf
systemctl daemon-reload
systemctl restart fl-server || fail "the server does not start on port 443"
eventually "the server does not listen on port 443" log_has fl-server "listening on 127.0.0.1:443"

systemctl stop fl-client@hospitals fl-server || fail "the services do not stop"
for unit in fl-client@hospitals fl-server; do
  [ "$(systemctl show -P Result $unit)" = success ] || fail "$unit has not ended cleanly"
done
log_has fl-server "stopped; the next start" || fail "the server has not ended cleanly"
[ "$(stat -c '%U %a' /var/lib/tributary/server)" = "tributary-server 700" ] || fail "the state is open"
rm -rf /var/lib/tributary/* /etc/tributary/hospitals.* /etc/systemd/system/fl-*.service.d
