"""What outlives the client's process: an update that has no verdict yet, and with it what error
feedback keeps. One file, replaced as a whole."""

import os

import numpy as np

from messages import wire

FILE = "update.npz"


def save(folder, run_key, pending, coder):
    """On the disk before it returns. `pending`: (begin, payload), or None."""
    begin, payload = pending or (wire.Begin(), b"")
    kept = {
        "run": np.array(run_key),
        "begin": np.frombuffer(begin.SerializeToString(), np.uint8),
        "payload": np.frombuffer(payload, np.uint8),
    }
    for name in ("residual", "velocity"):
        vector = getattr(coder, name, None)
        if vector is not None:
            kept[name] = vector
    unfinished = folder / (FILE + ".new")
    with open(unfinished, "wb") as file:
        np.savez(file, **kept)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / FILE)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def load(folder, run_key, coder):
    """What is pending, or None; gives the coder its vectors. A file of another run is none."""
    if not (folder / FILE).exists():
        return None
    with np.load(folder / FILE) as kept:
        if str(kept["run"]) != run_key:
            return None
        for name in ("residual", "velocity"):
            if coder and name in kept:
                setattr(coder, name, kept[name])
        begin = wire.Begin.FromString(kept["begin"].tobytes())
        return (begin, kept["payload"].tobytes()) if begin.bytes else None
