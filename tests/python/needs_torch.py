# SPDX-License-Identifier: Apache-2.0
"""To be imported first by a test that needs PyTorch: without it the test is skipped. With
FL_TEST_DEVICE=cuda tests that know DEVICE run on a GPU, which all ranks share, and are skipped without
one."""

import importlib.util
import os
import sys

for module in "numpy", "torch":
    if importlib.util.find_spec(module) is None:
        print(f"SKIPPED: {sys.executable} has no {module} (the packages python3-torch, python3-numpy)")
        sys.exit(77)  # The exit code that ctest takes for skipped.

DEVICE = os.environ.get("FL_TEST_DEVICE", "cpu")
if DEVICE == "cuda":
    import torch

    if not torch.cuda.is_available():
        print("SKIPPED: there is no GPU, or PyTorch is not for one: NOT TESTED on a GPU")
        sys.exit(77)


def join_group(**how):
    """Makes PyTorch's default group, over Gloo, and of GPUs over NCCL, which refuses two ranks of one
    machine on one GPU: each says that it is a machine of its own."""
    import torch.distributed as dist

    if DEVICE == "cpu":
        return dist.init_process_group("gloo", **how)
    rank = how.get("rank", os.environ.get("RANK"))
    os.environ |= {"NCCL_HOSTID": f"rank {rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    return dist.init_process_group("cpu:gloo,cuda:nccl", **how)
