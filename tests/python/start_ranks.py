# SPDX-License-Identifier: Apache-2.0
"""Starts a Python program as torchrun does: once for each rank, and ends all when one fails.
(torchrun of PyTorch 1.13, which some machines have, fails under Python 3.11.)

    start_ranks.py RANKS PROGRAM ARGUMENT..."""

import os
import signal
import socket
import subprocess
import sys
import time


def main():
    ranks = int(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = [
        subprocess.Popen(
            [sys.executable, *sys.argv[2:]],
            env={**os.environ, "RANK": str(rank), **{k: str(v) for k, v in variables.items()}},
            start_new_session=True,  # As under torchrun: a signal to this group does not reach them.
        )
        for rank in range(ranks)
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while any(process.poll() is None for process in running):
            if any(process.poll() for process in running):
                sys.exit(1)
            time.sleep(0.05)
        sys.exit(any(process.returncode for process in running))
    finally:
        for process in running:
            process.kill()
            process.wait()


main()
