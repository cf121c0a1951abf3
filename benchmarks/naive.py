"""AMP as it is written down: every sensing matrix A_ab stored, scores and adjoint as sums over them.

n samples of T tokens have nK of these d×d matrices, K = T(T+1)/2. The iteration is that of `amp_attention.amp.AMP`
without damping; channel and denoiser are the same objects.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention.channels import Guess
from amp_attention.data import Data
from amp_attention.numerics.packing import packed_size, upper_triangle
from amp_attention.problem import AttentionProblem


class DenseState(NamedTuple):
    """Estimate, variance, g and proximal points (K, n), and steps taken."""

    S: jax.Array
    V: jax.Array
    g: jax.Array
    z: jax.Array
    steps: jax.Array


@jax.jit
def sensing_matrices(X: jax.Array) -> jax.Array:
    """A_ab = (x_a x_bᵀ + x_b x_aᵀ − 2δ_ab I)/(2√d √(1+δ_ab)), a ≤ b, shape (n, K, d, d)."""
    _, tokens, d = X.shape
    rows, columns = upper_triangle(tokens)
    same = jnp.asarray(rows == columns, X.dtype)[:, None, None]
    a, b = X[:, rows], X[:, columns]
    outer = a[..., :, None] * b[..., None, :]
    symmetric = (outer + jnp.swapaxes(outer, -1, -2)) / 2 - same * jnp.eye(d, dtype=X.dtype)
    return symmetric / jnp.sqrt(1 + same) / math.sqrt(d)


def dense_start(data: Data) -> DenseState:
    """S = 0, V = 0, g = 0."""
    lanes = jnp.zeros((packed_size(data.T), data.n), data.dtype)
    return DenseState(jnp.zeros((data.d, data.d), data.dtype), jnp.zeros((), data.dtype), lanes, lanes, jnp.int32(0))


@eqx.filter_jit
def dense_step(problem: AttentionProblem, A: jax.Array, y: jax.Array, state: DenseState) -> DenseState:
    """One undamped AMP step."""
    (n, K), d = A.shape[:2], state.S.shape[0]
    matrices = A.reshape(n * K, d * d)  # as one matrix: no copy of it is made for either product
    omega = (matrices @ state.S.reshape(d * d)).reshape(n, K).T - state.V * state.g
    thorough = (state.steps < 10) | (state.steps % 10 == 0)  # look at all minima of the samples' problems
    step = problem.channel.apply(omega, jnp.moveaxis(y, 0, -1), state.V, Guess(state.z, thorough))
    field = (step.g.T.reshape(1, n * K) @ matrices).reshape(d, d)
    Gamma = -jnp.sum(step.divergence) / d**2
    new = problem.denoiser.apply(field / d + Gamma * state.S, Gamma)
    return DenseState(new.S, new.V, step.g, step.z, state.steps + 1)
