# SPDX-License-Identifier: Apache-2.0
"""Says where a test hangs, before CTest kills it without a word."""

import faulthandler
import os
import signal
import subprocess
import sys
import time

import fake_agent

sys.path.insert(0, str(fake_agent.PACKAGE))

from tributary_fl._run import end_with_parent

LIMIT_S = 280  # CTest waits 300 s.


def start():
    """After LIMIT_S prints all processes and threads, with what each waits for in the kernel, then
    ends this program with the Python calls of all its threads. A process of its own does so: tests
    fork, and must have no thread of ours then."""
    faulthandler.enable()
    watched = os.getpid()
    if os.fork() != 0:
        return
    end_with_parent(watched)
    time.sleep(LIMIT_S)
    print(f"the test hangs since {LIMIT_S} s", flush=True)
    subprocess.run(["ps", "-eLo", "pid,tid,ppid,stat,wchan:30,etime,args"], check=False)
    os.kill(watched, signal.SIGABRT)
    os._exit(1)
