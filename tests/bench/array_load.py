# SPDX-License-Identifier: Apache-2.0
"""A tenant of vgpu-bench with JAX or CuPy. array_load.py jax|cupy

Products of matrices, eight in a step, whose result the host waits for. Speaks the
protocol of torch_load.py.
"""

import json
import os
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
SIZE, LAYERS = 2048, 8


def with_jax():
    import jax
    import jax.numpy as jnp
    w = jax.random.normal(jax.random.PRNGKey(1), (SIZE, SIZE), dtype=jnp.bfloat16) / SIZE ** 0.5

    @jax.jit
    def layers(x):
        for _ in range(LAYERS):
            x = jnp.tanh(x @ w)
        return x

    x = jnp.ones((SIZE, SIZE), dtype=jnp.bfloat16)
    return lambda: layers(x).block_until_ready()


def with_cupy():
    import cupy
    w = cupy.random.standard_normal((SIZE, SIZE), dtype=cupy.float32) / SIZE ** 0.5
    x = cupy.ones((SIZE, SIZE), dtype=cupy.float32)

    def step():
        y = x
        for _ in range(LAYERS):
            y = cupy.tanh(y @ w)
        cupy.cuda.get_current_stream().synchronize()

    return step


def main():
    modes = {"jax": with_jax, "cupy": with_cupy}
    if len(sys.argv) != 2 or sys.argv[1] not in modes:
        sys.exit(__doc__)
    step = modes[sys.argv[1]]()
    for _ in range(5):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        _, start, end = line.split()[:3]
        time.sleep(max(0, int(start) - time.monotonic_ns()) / 1e9)
        steps = []
        while (begun := time.monotonic_ns()) < int(end):
            step()
            steps.append([begun, (time.monotonic_ns() - begun) / 1e6])
        print(json.dumps({"steps": steps}), flush=True)


main()
