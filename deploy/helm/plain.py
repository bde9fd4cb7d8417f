# SPDX-License-Identifier: Apache-2.0
"""The chart's objects for one set of values, and the plain manifests that are made from it.

    RENDER=… python3 deploy/helm/plain.py      writes deploy/kubernetes/

RENDER names the program of deploy/helm/render; `./dev manifests --write` builds it and runs this."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

CHART = Path(__file__).resolve().parent / "tributary"
FOLDER = CHART.parents[1] / "kubernetes"
ORDER = ("account", "config", "service", "statefulset", "disruption", "network")
EXAMPLE = {"advertise": "federation.example.org:8443", "restartOnChange": False}
# Each file: the lines above, the values, and the templates in order.
FILES = {
    "server.yaml": (
        """\
# The server of one federation: docs/guide/install.md says how to use this. One replica, because a
# federation has one server; its state is on a volume, and it goes on where it was after any kill.
""",
        {"server": EXAMPLE},
        [f"server/{name}.yaml" for name in ORDER],
    ),
    "secret.example.yaml": (
        """\
# Better than this file, which shows what there must be:
#   kubectl create secret generic tributary-server --from-literal=admin-token="$(openssl rand -hex 32)"
""",
        {"server": EXAMPLE | {"adminToken": "replace-this-by-64-random-digits"}},
        ["server/secret.yaml"],
    ),
    "servicemonitor.yaml": (
        "",
        {"server": EXAMPLE | {"serviceMonitor": {"enabled": True}}},
        ["server/monitor.yaml"],
    ),
    "client.yaml": (
        """\
# A client of one federation, beside the data of this cluster. Its token:
#   kubectl create secret generic tributary-client --from-file=join-token
""",
        {"server": {"enabled": False}, "client": {"enabled": True, "restartOnChange": False}},
        [f"client/{name}.yaml" for name in ORDER if name != "disruption"],
    ),
}


def render(values, release="tributary", namespace="default"):
    """Returns what comes out of each template that is not empty, by its path below templates/.
    Raises ValueError with the renderer's words if it refuses."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(values, file)  # JSON is YAML.
        file.flush()
        done = subprocess.run(
            [os.environ["RENDER"], CHART, release, namespace, file.name],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return {path: text for path, text in json.loads(done.stdout).items() if text.strip()}


def plain(name):
    """Returns the text of deploy/kubernetes/NAME."""
    above, values, templates = FILES[name]
    parts = render(values)
    head = (
        "# SPDX-License-Identifier: Apache-2.0\n"
        "# Made from deploy/helm/tributary by `./dev manifests --write`.\n"
    )
    return head + above + "".join(f"---\n{parts[path].strip()}\n" for path in templates)


if __name__ == "__main__":
    for each in FILES:
        (FOLDER / each).write_text(plain(each))
