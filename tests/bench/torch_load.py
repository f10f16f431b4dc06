# SPDX-License-Identifier: Apache-2.0
"""A PyTorch tenant of vgpu-bench. torch_load.py MODE [--kernels]

MODE  train        bf16 training of a transformer: 6 layers, width 1024, 16 x 512 tokens
      train-graph  the same, each step one CUDA graph
      train-half   as train, with half the batch: steps half as long
      train-paused as train, and every sixtieth step or so waits 80 ms for its data
      train-ddp    as train, on two cards, gradients summed by NCCL; a second process is started
      decode       a small transformer that makes one token after another, as inference does

Speaks the protocol of vgpu-load: prints "ready", reads "go START END" (monotonic
clock, ns), prints one line of JSON: {"steps": [[begun ns, took ms], ...]}.

With --kernels it says instead for how long kernels, copies and fills of a step are on
the card, by the driver's own records: {"kernels_ms": MS}.
"""

import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import torch
from torch import nn


def transformer(layers, width, heads):
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def training(graphed, wrap=lambda model: model, batch=16):
    """Returns a function that does one step."""
    model = wrap(transformer(6, 1024, 16).cuda().to(torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, capturable=graphed)
    x = torch.randn(batch, 512, 1024, device="cuda", dtype=torch.bfloat16)
    y = torch.randn_like(x)

    def step():
        optimizer.zero_grad(set_to_none=not graphed)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    if not graphed:
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def late_data():
    """Returns what waits for data now and then, at no fixed step."""
    chance = random.Random(os.getpid())
    return lambda: time.sleep(0.08) if chance.random() < 1 / 60 else None


def train_ddp():
    """One of two processes, each with a card; the second follows the first step by step."""
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = dict(os.environ, RANK="1", MASTER_PORT=str(port), MASTER_ADDR="127.0.0.1")
        other = subprocess.Popen(
            [sys.executable, __file__, "train-ddp"], env=env, stdin=subprocess.PIPE, stdout=sys.stderr, text=True,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL))  # PR_SET_PDEATHSIG
        os.environ.update(env, RANK="0")
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
    step = training(False, lambda model: nn.parallel.DistributedDataParallel(model, device_ids=[rank]))
    if rank == 1:
        for _ in sys.stdin:
            step()
            torch.cuda.synchronize()
        os._exit(0)  # the first is gone: nobody is left to take leave of

    def both():
        other.stdin.write("step\n")
        other.stdin.flush()
        step()

    return both


def decode():
    model = transformer(4, 512, 8).cuda().to(torch.bfloat16).eval()
    x = torch.randn(8, 64, 512, device="cuda", dtype=torch.bfloat16)

    @torch.inference_mode()
    def step():
        # the last token is looked at on the host, as a sampler does
        float(model(x)[:, -1].float().sum())

    return step


def kernels(step, steps=20):
    """Returns the ms of a step in which something of it is on the card."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    spans = sorted((e.time_range.start, e.time_range.end) for e in recorded.events()
                   if e.device_type == torch.autograd.DeviceType.CUDA)
    busy, until = 0, 0
    for start, end in spans:  # in µs; those of two streams may overlap
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy / 1000 / steps


def main():
    modes = {"train": lambda: training(False), "train-graph": lambda: training(True),
             "train-half": lambda: training(False, batch=8), "train-paused": lambda: training(False), "train-ddp": train_ddp, "decode": decode}
    if len(sys.argv) < 2 or sys.argv[1] not in modes or sys.argv[2:] not in ([], ["--kernels"]):
        sys.exit(__doc__)
    torch.manual_seed(1)
    step = modes[sys.argv[1]]()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    if len(sys.argv) == 3:
        print(json.dumps({"kernels_ms": kernels(step)}), flush=True)
        return
    print("ready", flush=True)
    _, start, end = sys.stdin.readline().split()
    start, end = int(start), int(end)
    time.sleep(max(0, start - time.monotonic_ns()) / 1e9)
    steps = []
    wait = late_data() if sys.argv[1] == "train-paused" else lambda: None
    while (begun := time.monotonic_ns()) < end:
        step()
        torch.cuda.synchronize()
        steps.append([begun, (time.monotonic_ns() - begun) / 1e6])
        wait()
    print(json.dumps({"steps": steps}), flush=True)
    os._exit(0)  # NCCL's end waits for the other process

main()
