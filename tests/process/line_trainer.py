# SPDX-License-Identifier: Apache-2.0
"""line_trainer.py DATA.npz: a program for `fl-client --trainer` that trains by the code of the client of
examples/python-client. So both make the same updates, bit for bit."""

import json
import os
import pathlib
import socket
import sys
import types

from safetensors.numpy import load_file, save_file

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python-client"))
import client


def main(path):
    line = client.Line(path)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["TRIBUTARY_SOCKET"])

    def tell(**message):
        connection.sendall(json.dumps(message).encode() + b"\n")

    tensors = [{"name": "weight", "shape": [line.size]}]
    facts = dict(train_examples=line.examples, supports=["optimizer", "proximal"])
    tell(type="hello", protocol=1, tensors=tensors, **facts)
    for request in map(json.loads, connection.makefile("rb")):
        if request["type"] == "bye":
            return
        if request["type"] == "train":
            settings = request["settings"]
            names = {"local_steps": "steps", "local_epochs": "epochs", "local_seconds": "seconds"}
            offer = {**settings, **{field: settings[name] for field, name in names.items()}}
            offer["optimizer"] = settings["optimizer"]["name"]
            start = load_file(request["weights"])["weight"]
            update, steps, loss = line.train(start, types.SimpleNamespace(**offer))
            save_file({"weight": update}, request["out"])
            tell(type="done", id=request["id"], wrote="update", steps=steps, loss=loss)


if __name__ == "__main__":
    main(sys.argv[1])
