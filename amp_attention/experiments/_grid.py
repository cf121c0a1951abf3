"""Grids of problems."""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from amp_attention.problem import AttentionProblem, attention_problem


def problem_grid(alphas: Iterable[float], lams: Iterable[float], **options: Any) -> list[AttentionProblem]:
    """The product grid, alpha outermost.

    Args:
        alphas: values of α = n/d² > 0.
        lams: values of λ̃ ≥ 0.
        **options: of `attention_problem`, the same for all.

    Returns:
        One problem a point; all of the same shapes, so that one compiled solver serves them.
    """
    lams = list(lams)
    return [attention_problem(alpha, lam, **options) for alpha in alphas for lam in lams]


def problem_at(problem: AttentionProblem, *, alpha: float | None = None, lam: float | None = None) -> AttentionProblem:
    """The same problem at another sample ratio or regularisation, in the same dtype."""
    dtype = problem.alpha.dtype
    if alpha is not None:
        problem = eqx.tree_at(lambda p: p.alpha, problem, jnp.asarray(alpha, dtype))
    if lam is not None:
        problem = eqx.tree_at(lambda p: p.denoiser.lam, problem, jnp.asarray(lam, dtype))
    return problem
