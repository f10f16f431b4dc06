# SPDX-License-Identifier: Apache-2.0
"""A PyTorch tenant of vgpu-bench. torch_load.py MODE[:PART,...] [--kernels]

MODE  train        bf16 training of a transformer: 6 layers, width 1024, 16 x 512 tokens
      train-graph  the same, each step one CUDA graph
      train-half   as train, with half the batch: steps half as long
      train-paused as train, and every sixtieth step or so waits 80 ms for its data
      train-ddp    as train, on two cards, gradients summed by NCCL; a second process is started
      infer        the same model, one sequence of 64 tokens, no gradients
      decode       a small transformer that makes one token after another, as inference does
PART  wait=K       wait for the card at every K-th step (1); 0: never, but keep back
      ahead=M      with waits M batches of K steps are in flight (1), without M steps (4)
      late=MS/N    about every N-th step waits MS milliseconds for its data, the same ones in each run
      batch=N      sequences in a step of infer (1)

Speaks the protocol of vgpu-load: prints "ready", reads "go START END" (monotonic
clock, ns), prints one line of JSON: {"steps": [[begun ns, took ms], ...]}; and again,
until its input ends. "go START END PART,..." has other waits in this run.

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


def infer(batch):
    model = transformer(6, 1024, 16).cuda().to(torch.bfloat16).eval()
    x = torch.randn(batch, 64, 1024, device="cuda", dtype=torch.bfloat16)

    @torch.inference_mode()
    def step():
        model(x)

    return step


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


class Rhythm:
    """When the host waits for the card, from wait=K,ahead=M,late=MS/N,batch=N."""

    def __init__(self, text):
        parts = {"wait": "1", "ahead": "", "late": "0/0", "batch": "1"}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in parts:
                sys.exit(f"torch_load.py: {part}: want some of wait=K, ahead=M, late=MS/N, batch=N")
            parts[name] = value
        try:
            self.wait, self.batch = int(parts["wait"]), int(parts["batch"])
            self.ahead = int(parts["ahead"] or (1 if self.wait else 4))
            self.late_ms, self.late_every = map(float, parts["late"].split("/"))
        except ValueError:
            sys.exit(f"torch_load.py: {text}: want numbers, such as wait=4,ahead=2,late=80/60,batch=8")
        self.seed = 1

    def data(self):
        """Returns what waits for data now and then, at no fixed step."""
        chance = random.Random(self.seed)
        every, ms = self.late_every, self.late_ms
        return lambda: time.sleep(ms / 1000) if every and chance.random() < 1 / every else None

    def play(self, step, start, end):
        """Does steps from start to end, and returns when each began and what it took."""
        data = self.data()
        plain = self.wait == 1 and self.ahead == 1
        begun, took, marks = [], [], []
        base = torch.cuda.Event(enable_timing=True)
        base.record()
        torch.cuda.synchronize()
        base_ns = time.monotonic_ns()
        time.sleep(max(0, start - time.monotonic_ns()) / 1e9)
        while (now := time.monotonic_ns()) < end:
            begun.append(now)
            step()
            if plain:
                torch.cuda.synchronize()
                took.append((time.monotonic_ns() - now) / 1e6)
            else:
                marks.append(torch.cuda.Event(enable_timing=True))
                marks[-1].record()
                self.keep_back(marks)
            data()
        torch.cuda.synchronize()
        if not plain:  # the card knows when each step ended, whenever the host looked
            took = [(base_ns - b) / 1e6 + base.elapsed_time(m) for b, m in zip(begun, marks)]
        return [list(pair) for pair in zip(begun, took)]

    def keep_back(self, marks):
        n = len(marks)
        if self.wait and n % self.wait == 0:
            if self.ahead == 1:
                torch.cuda.synchronize()
            elif (oldest := n - 1 - self.wait * (self.ahead - 1)) >= 0:
                marks[oldest].synchronize()
        elif not self.wait and n >= self.ahead:
            while not marks[n - self.ahead].query():
                time.sleep(0.00005)


def main():
    mode, _, parts = sys.argv[1].partition(":") if len(sys.argv) > 1 else ("", "", "")
    rhythm = Rhythm(parts)
    modes = {"train": lambda: training(False), "train-graph": lambda: training(True),
             "train-half": lambda: training(False, batch=8), "train-paused": lambda: training(False),
             "train-ddp": train_ddp, "infer": lambda: infer(rhythm.batch), "decode": decode}
    if mode not in modes or sys.argv[2:] not in ([], ["--kernels"]):
        sys.exit(__doc__)
    torch.manual_seed(1)
    if mode == "train-paused":
        rhythm.late_ms, rhythm.late_every, rhythm.seed = 80, 60, os.getpid()
    step = modes[mode]()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    if len(sys.argv) == 3:
        print(json.dumps({"kernels_ms": kernels(step)}), flush=True)
        return
    print("ready", flush=True)
    for line in sys.stdin:
        _, start, end, *other = line.split()
        steps = (Rhythm(other[0]) if other else rhythm).play(step, int(start), int(end))
        print(json.dumps({"steps": steps}), flush=True)
    os._exit(0)  # NCCL's end waits for the other process


main()
