# SPDX-License-Identifier: Apache-2.0
"""What a user's PyTorch job sees of its share. Prints one "name value" a line.

torch_job.py memory          limit and free memory, and what happens above them
torch_job.py work START SECS keep the card busy, count matrix products from
                             the monotonic time START for SECS seconds
"""

import subprocess
import sys
import time

import torch

MIB = 1 << 20


def smi_memory():
    """MiB of the first card, in nvidia-smi's eyes."""
    out = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
        check=True, capture_output=True, text=True)
    return int(out.stdout.split()[0])


def memory():
    free, total = torch.cuda.mem_get_info()
    print("torch_total_mib", total // MIB)
    print("torch_free_mib", free // MIB)
    print("smi_total_mib", smi_memory())
    half = torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    half.fill_(1)
    torch.cuda.synchronize()
    print("half_allocated_mib", half.numel() // MIB)
    try:
        torch.empty(total, dtype=torch.uint8, device="cuda")
        print("above", "allocated")
    except torch.OutOfMemoryError as e:
        print("above", "refused")
        print("above_message", str(e).split(".")[0])
    # The program goes on after the refusal.
    print("sum_after", int(half[: MIB].sum()))


def work(start, seconds):
    """Saturates the card with products of about 1 ms. Counts by the card's own
    completions: at most two products are queued beyond the counted one."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    done = []

    def one():
        for _ in range(4):
            torch.matmul(a, b, out=out)
        event = torch.cuda.Event()
        event.record()
        done.append(event)
        while len(done) > 2:
            done.pop(0).synchronize()

    while time.monotonic() < start:
        one()
    count, first = 0, time.monotonic()
    while time.monotonic() < first + seconds:
        one()
        count += 1
    elapsed = time.monotonic() - first
    # Stay busy while the other tenant may still be counting.
    while time.monotonic() < first + seconds + 1:
        one()
    torch.cuda.synchronize()
    print("rate", count / elapsed)


def main():
    if sys.argv[1:2] == ["memory"]:
        memory()
    elif sys.argv[1:2] == ["work"] and len(sys.argv) == 4:
        work(float(sys.argv[2]), float(sys.argv[3]))
    else:
        sys.exit(__doc__)


main()
