# SPDX-License-Identifier: Apache-2.0
"""Says where a test hangs, before CTest kills it without a word."""

import ctypes
import faulthandler
import os
import signal
import subprocess
import time

PR_SET_PDEATHSIG = 1
LIMIT_S = 280  # CTest waits 300 s.


def start():
    """After LIMIT_S prints all processes and threads, with what each waits for in the kernel, then
    ends this program with the Python calls of all its threads. A process of its own does so: tests
    fork, and must have no thread of ours then."""
    faulthandler.enable()
    watched = os.getpid()
    if os.fork() != 0:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    time.sleep(LIMIT_S)
    print(f"the test hangs since {LIMIT_S} s", flush=True)
    subprocess.run(["ps", "-eLo", "pid,tid,ppid,stat,wchan:30,etime,args"], check=False)
    if os.getppid() == watched:
        os.kill(watched, signal.SIGABRT)
    os._exit(1)
