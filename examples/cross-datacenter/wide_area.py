# SPDX-License-Identifier: Apache-2.0
"""Places that are far from each other, on one machine: each is a network namespace with one link to
a bridge, which `tc` keeps to a rate in both directions. Needs iproute2 and util-linux, and either
root or a kernel that lets users make namespaces. Nothing is left when the program ends."""

import json
import os
import signal
import subprocess
import sys

ENTERED = "TRIBUTARY_WIDE_AREA"


def enter_namespaces():
    """Starts this program again in namespaces of its own, in which it may do what root may. All
    that it starts there ends with it."""
    if os.environ.get(ENTERED):
        # The first process of a PID namespace does not die of a signal that it does not handle.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        run("mount", "-t", "tmpfs", "none", "/run")
        run("ip", "link", "set", "lo", "up")
        return
    own = "--user --map-root-user --net --mount --uts --pid --fork --kill-child --mount-proc"
    os.environ[ENTERED] = "1"
    os.execvp("unshare", ["unshare", *own.split(), sys.executable, *sys.argv])


HERE = "10.77.0.254"  # The address of what runs in none of the places. Its link is not shaped.


class WideArea:
    """A place's address is 10.77.0.N, in the order of `names`. `rate`: of each link, as tc writes it
    ("10mbit"), or None. Everywhere the network's interface is eth0; here it is the bridge."""

    def __init__(self, names, rate=None):
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        run("ip", "link", "add", "eth0", "type", "bridge")
        run("ip", "address", "add", f"{HERE}/24", "dev", "eth0")
        run("ip", "link", "set", "eth0", "up")
        for name, address in self.addresses.items():
            run("ip", "netns", "add", name)
            link = ("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0")
            run("ip", *link, "netns", name)
            run("ip", "link", "set", f"to-{name}", "master", "eth0", "up")
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")
            if rate:
                shape = ("root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms")
                run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape)
                run("tc", "qdisc", "add", "dev", f"to-{name}", *shape)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in self.addresses:
            run("ip", "link", "delete", f"to-{name}")
            run("ip", "netns", "delete", name)
        run("ip", "link", "delete", "eth0")

    def command(self, name, command):
        """The command that runs this one at a place, with the place's name as host name."""
        inside = ["sh", "-c", f'hostname {name} && exec "$@"', "sh", *map(str, command)]
        return ["ip", "netns", "exec", name, "unshare", "--uts", *inside]

    def set_link(self, name, state):
        """Cuts the place's link ("down"), or mends it ("up")."""
        run("ip", "link", "set", f"to-{name}", state)

    def bytes(self, name):
        """Returns how many bytes have gone over the place's link, up and down, with all headers."""
        shown = subprocess.run(
            ["ip", "-n", name, "-s", "-j", "link", "show", "eth0"], check=True, capture_output=True
        )
        link = json.loads(shown.stdout)[0]["stats64"]
        return link["tx"]["bytes"], link["rx"]["bytes"]


def run(*command):
    subprocess.run(command, check=True)
