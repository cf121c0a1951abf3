"""One AMP iteration against what it cannot do without: the products X@S and XᵀY, and the eigendecomposition of d×d.

The iteration is a late one, where most samples' problems are already solved by their warm start; the first ten and
every tenth look at all minima of each sample, which is reported beside it as thorough. The products are the faster of
those of the whole array and those summed over chunks of 1000 samples. With several devices the samples are divided over
one virtual device a core; products and eigendecomposition stay those of one device, which uses all cores as well.
S and XᵀY are symmetric: the iteration computes three quarters of each product and may take less time than both.
α = 0.5, float32.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention.amp import AMP
from amp_attention.amp._amp import channel_pass
from amp_attention.data import device_mesh, replicated, shard, sum_over_samples
from benchmarks._measure import advanced, chunked_products, instance, interleaved, medians, point, row, whole_products
from benchmarks._process import fresh

ALPHA = 0.5
LIMITS = {(200, 2): 1.3, (400, 2): 1.2}  # of the ratio, by (d, T)


@eqx.filter_jit
def divided_products(S, data):
    """The two products, each device those of its own samples."""

    def body(S, samples):
        return whole_products(S, samples.X), ()

    return sum_over_samples(body, S, data, chunk=1000)[0]


def measure(d: int, tokens: int, devices: int, rounds: int) -> dict:
    """Seconds of the iteration and of its parts, called in turn."""
    problem, data = instance(d, tokens, ALPHA, jnp.float32)
    mesh = device_mesh(devices) if devices > 1 else None
    placed = data if mesh is None else shard(data, mesh)
    problem = replicated(problem, mesh)
    step, late, compilation = advanced(AMP(), problem, placed)
    thorough = eqx.tree_at(lambda state: state.thorough, late, jnp.ones_like(late.thorough))
    assert not bool(late.thorough)

    found = eqx.filter_jit(channel_pass)(problem, placed, late)
    decomposed = jax.device_put(found.field / d + found.Gamma * late.S, jax.devices()[0])
    eigh, X = jax.jit(jnp.linalg.eigh), data.X
    functions = {
        "iteration": lambda: step(problem, placed, late),
        "thorough iteration": lambda: step(problem, placed, thorough),
        "whole products": lambda: whole_products(decomposed, X),
        "chunked products": lambda: chunked_products(decomposed, X),
        "eigh": lambda: eigh(decomposed),
    }
    if mesh is not None:
        everywhere = replicated(decomposed, mesh)
        functions["divided products"] = lambda: divided_products(everywhere, placed)
    return {"seconds": interleaved(functions, rounds), "compilation": compilation}


def rows_of(result: dict, limit: float | None) -> list[dict]:
    """The ratio and what it is made of."""
    middle = medians(result["seconds"])
    products = min(("whole products", "chunked products"), key=lambda name: middle[name])
    floor = middle[products] + middle["eigh"]
    rows = [
        row("iteration / (products + eigh)", middle["iteration"] / floor, limit=limit),
        row("thorough iteration / (products + eigh)", middle["thorough iteration"] / floor),
    ]
    if "divided products" in middle:
        divided = min(middle["divided products"], middle[products]) + middle["eigh"]
        rows.append(row("iteration / (products divided over the devices + eigh)", middle["iteration"] / divided))
    rows += [row(name, 1e3 * value, "ms") for name, value in middle.items()]
    return [*rows, row("compilation of the iteration", result["compilation"], "s")]


def bench_iteration(record, d, tokens, devices, rounds):
    result = fresh(measure, cpu_devices=devices, timeout=900, d=d, tokens=tokens, devices=devices, rounds=rounds)
    rows = rows_of(result, LIMITS.get((d, tokens)))
    points = [point("amp_iteration", f"T = {tokens}, {devices} device(s)", d, rows[0]["value"])]
    record(f"d = {d}, T = {tokens}, devices = {devices}", result["seconds"]["iteration"], rows, points)
