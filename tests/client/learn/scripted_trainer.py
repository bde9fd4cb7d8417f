#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer program for process_trainer_test.cpp, with the standard library only. Its model has the
tensors w (2 x 3) and b (2); training adds 1 to each value, and a correction if there is one. The
argument says what it does wrong:

  - | exit-at-start | silent-start | not-json | other-type | cannot-begin | exit-in-train | hang | error | diverged |
  cancellable | fifo | deep | short | misshapen | not-finite | stale | flood | other-layout-later | once [NAME]

Environment: each start adds a line to the file STARTS; a training takes SECONDS; DTYPE, SUPPORTS and
FROZEN go into hello, and METRICS (JSON); TENSORS has other shapes by name (JSON); ADDS has the numbers that a training adds, in place of 1; with ALWAYS it does wrong in each start, not in the first one only. With CLIENTS
it plays clients: number k of n has 40 + k examples, and each training adds 1 + k and a line to the
file `trained` in the client's folder; the program itself has CLIENTS examples to measure on."""

import json
import math
import os
import pathlib
import socket
import struct
import sys
import time

MODE = sys.argv[1] if len(sys.argv) > 1 else "-"
DTYPE = os.environ.get("DTYPE", "F32")
FORMATS = {"F32": "f", "F64": "d", "F16": "e"}
TENSORS = json.loads(os.environ.get("TENSORS", '{"w": [2, 3], "b": [2]}'))
W, B = list(TENSORS)[:2]
SIZES = {name: math.prod(shape) for name, shape in TENSORS.items()}


def starts():
    path = os.environ.get("STARTS")
    if not path:
        return 1
    with open(path, "a", encoding="utf-8") as file:
        file.write("start\n")
    return len(pathlib.Path(path).read_text(encoding="utf-8").splitlines())


def read(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        form = FORMATS[entry["dtype"]]
        raw = data[8 + size + begin : 8 + size + end]
        tensors[name] = list(struct.unpack(f"<{len(raw) // struct.calcsize(form)}{form}", raw))
    return tensors


def write(path, tensors, shapes=None, dtype="F32"):
    shapes = shapes or TENSORS
    header, data = {}, b""
    for name, values in tensors.items():
        raw = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def hello(number):
    shapes = dict(TENSORS)
    if MODE == "other-layout-later" and number > 1:
        shapes[B] = [3]
    clients = os.environ.get("CLIENTS")
    tensors = [{"name": n, "shape": s, "dtype": DTYPE} for n, s in shapes.items()]
    tensors.append({"name": "count", "shape": [], "dtype": "I64"})
    return {
        "type": "hello",
        "protocol": 1,
        "tensors": tensors,
        "train_examples": 40,
        "holdout_examples": int(clients or 10),
        "clients": clients is not None,
        "metrics": json.loads(os.environ.get("METRICS", '["accuracy", {"name": "f1"}]')),
        "supports": os.environ.get(
            "SUPPORTS", "optimizer proximal correction gradient initial"
        ).split(),
        "frozen": os.environ.get("FROZEN", ""),
    }


def trained(request):
    weights = read(request["weights"])
    correction = read(request["correction"]) if "correction" in request else {}
    adds = [float(word) for word in os.environ.get("ADDS", "1 " * sum(SIZES.values())).split()]
    adds = {name: [adds.pop(0) for _ in range(size)] for name, size in SIZES.items()}
    for name, values in weights.items():
        added = correction.get(name, [0] * len(values))
        more = request.get("client", 0)
        weights[name] = [v + m + more + a for v, m, a in zip(values, adds[name], added)]
    if "client" in request:
        folder = pathlib.Path(request["state"])
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "trained", "a", encoding="utf-8") as file:
            file.write(f"{request['round']} {request['client']} {request['clients']}\n")
    return weights


def answer(request):
    """The members of `done`, after the result's file is written."""
    if request["type"] == "client":
        return {"train_examples": 40 + request["client"], "holdout_examples": 0}
    if request["type"] == "evaluate":
        assert "client" not in request
        first = read(request["weights"])[W][0]
        f1 = {"value": 0.5, "weight": 7}
        return {"loss": first, "metrics": {"accuracy": 0.75, "f1": f1}}
    if request["type"] == "initial":
        write(request["out"], {n: [request["seed"]] * size for n, size in SIZES.items()})
        return {}
    if request["type"] == "gradient":
        write(request["out"], read(request["weights"]))
        return {}
    print("training round", request["round"], flush=True)
    time.sleep(float(os.environ.get("SECONDS", "0")))
    tensors, shapes = trained(request), dict(TENSORS)
    if MODE == "exit-in-train":
        print("FileNotFoundError: part-1.npz", file=sys.stderr)
        sys.exit(3)
    if MODE == "misshapen":
        shapes[W] = [3, 2]
    if MODE == "not-finite":
        tensors[B][1] = float("nan")
    if MODE == "fifo":
        pathlib.Path(request["out"]).unlink()
        os.mkfifo(request["out"])
    elif MODE != "stale" or request["round"] == 1:
        write(request["out"], tensors, shapes, dtype=DTYPE)
    if MODE == "short":
        path = pathlib.Path(request["out"])
        path.write_bytes(path.read_bytes()[:-4])
    return {"wrote": "weights", "steps": 3, "loss": 0.25}


def serve():
    number = starts()
    if MODE == "exit-at-start":
        print("ModuleNotFoundError: No module named 'torch'", file=sys.stderr)
        sys.exit(1)
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["TRIBUTARY_SOCKET"])
    if MODE == "silent-start":
        time.sleep(60)
    first = {
        "not-json": b"hello\n",
        "deep": b'{"type":' * 3_000_000 + b"1" + b"}" * 3_000_000 + b"\n",
        "other-type": b'{"type": "done"}\n',
        "cannot-begin": b'{"type": "error", "reason": "FileNotFoundError: part-1.npz"}\n',
    }.get(MODE)
    line.sendall(first or json.dumps(hello(number)).encode() + b"\n")

    def send(message):
        line.sendall(json.dumps(message).encode() + b"\n")

    for text in line.makefile(encoding="utf-8"):
        request = json.loads(text)
        if request["type"] == "bye":
            print("bye:", request.get("reason", "no reason"), flush=True)
            break
        if request["type"] == "cancel":
            continue
        fails = request["type"] == "train" and (number == 1 or "ALWAYS" in os.environ)
        if fails and MODE == "hang":
            time.sleep(60)
        if fails and MODE == "cancellable":
            for text in line.makefile(encoding="utf-8"):
                send({"type": "error", "id": json.loads(text)["id"], "reason": "cancelled"})
                break
            continue
        if fails and MODE in ("error", "diverged"):
            reason = os.environ.get("REASON", "ValueError: odd labels")
            send({"type": "error", "id": request["id"], "reason": reason, "diverged": MODE == "diverged"})
            continue
        if MODE == "flood":
            sys.stdout.write("x" * 79 + "\n" * 1 + ("y" * 79 + "\n") * 200000)
            sys.stdout.flush()
        send({"type": "progress", "id": request["id"], "step": 1})
        send({"type": "done", "id": request["id"], **answer(request)})


def once():
    """This trainer as a command for each request."""
    request = json.loads(pathlib.Path("task.json").read_text(encoding="utf-8"))
    result = {}
    if request["type"] == "hello":
        pathlib.Path("hello.json").write_text(json.dumps(hello(1)), encoding="utf-8")
        return
    request["out"] = {
        "train": "weights.safetensors",
        "initial": "initial.safetensors",
        "gradient": "gradient.safetensors",
    }.get(request["type"])
    result = answer(request)
    result.pop("wrote", None)
    pathlib.Path("metrics.json").write_text(json.dumps(result), encoding="utf-8")


if MODE == "once":
    MODE = sys.argv[2] if len(sys.argv) > 2 else "-"
    once()
else:
    serve()
