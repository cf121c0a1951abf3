"""Derivatives of what AMP finds, by the implicit function theorem.

A fixed point of AMP is one of the proximal gradient step, S = P(S, θ), whose derivative along θ, the numbers of the
problem and the data, solves the linear system (1 − ∂P/∂S) dS = ∂P/∂θ dθ. No step of AMP is ever differentiated.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import bicgstab

from amp_attention._solution import Solution
from amp_attention._typing import Array, Float, Scalar
from amp_attention.amp._amp import AMPState
from amp_attention.amp._estimate import AMPEstimate, estimate, positive_or_one, target_or_nan
from amp_attention.channels import ERMChannel
from amp_attention.data import Data
from amp_attention.numerics.implicit import trusted
from amp_attention.objective import check_fits, loss_and_gradient, training_objective
from amp_attention.problem import AttentionProblem, cast

_MOST_ITERATIONS = 2000
_SLACK = 10  # the true residual lags behind that of the recursion by rounding
_MOST_STARTS = 5  # BiCGStab can break down, by chance of rounding, and goes on from where it is


def _proximal_gradient(problem: AttentionProblem, S, data: Data, Gamma: Scalar) -> Float[Array, "d d"]:
    """P(S) = prox(Γ S − G), G = (1/d)∇_S Σℓ: its fixed points minimise the objective, whatever Γ > 0."""
    if not isinstance(problem.channel, ERMChannel):
        raise TypeError(f"channel must be an ERMChannel for derivatives of S, got {type(problem.channel).__name__}")
    S = (S + S.T) / 2  # so that the transposed system, too, lives on symmetric matrices
    _, gradient = loss_and_gradient(problem.channel.loss, S, data)
    return problem.denoiser.apply(Gamma * S - gradient, Gamma).S


def _krylov(matvec, b):
    """A⁻¹b by BiCGStab, to a relative residual of 1e-10 (1e-5 in float32); NaN where it does not get there."""
    accepted = 1e-10 if b.dtype == jnp.float64 else 1e-5
    size = jnp.max(jnp.abs(b))
    scale = jnp.where(size > 0, size, jnp.ones_like(size))  # squares of tiny numbers would underflow
    b = b / scale
    goal = accepted * jnp.linalg.norm(b)

    def restart(carry):
        x, residual, starts = carry
        new, _ = bicgstab(matvec, b, x, tol=accepted / _SLACK, maxiter=_MOST_ITERATIONS)
        missed = jnp.linalg.norm(matvec(new) - b)
        better = missed < residual  # not NaN either
        return jnp.where(better, new, x), jnp.where(better, missed, residual), starts + 1

    start = (jnp.zeros_like(b), jnp.linalg.norm(b), jnp.int32(0))
    x, residual, _ = jax.lax.while_loop(lambda c: (c[1] > goal) & (c[2] < _MOST_STARTS), restart, start)
    return jnp.where(residual <= goal, x * scale, jnp.full_like(x, jnp.nan))


@eqx.filter_custom_jvp
def implicit_fixed_point(
    problem: AttentionProblem, data: Data, S: Float[Array, "d d"], Gamma: Scalar
) -> Float[Array, "d d"]:
    """The fixed point S of the proximal gradient step, already found, as a function of the problem and the data.

    dS = (1 − ∂P/∂S)⁻¹ ∂P/∂θ dθ. Only products of ∂P/∂S with matrices are formed, each by one pass over the data;
    forward mode solves this system, reverse mode its transpose. The eigenvalues of 1 − ∂P/∂S are real for any penalty,
    and positive at a strict minimum. Where an eigenvalue of Γ S − G is at the threshold, S has a kink, and the
    derivative is the one that `denoiser.apply` takes there.

    Args:
        problem: with an `ERMChannel`.
        data: the samples.
        S: the fixed point; what it was computed from carries no derivative.
        Gamma: Γ > 0, the inverse length of the step. It does not matter but for the condition of the system.
    """
    return S


@implicit_fixed_point.def_jvp
def _implicit_fixed_point_jvp(primals, tangents):
    problem, data, S, Gamma = primals
    d_problem, d_data, *_ = tangents
    S = implicit_fixed_point(*primals)  # again, so that derivatives of this rule are right as well
    if not jax.tree.leaves((d_problem, d_data)):
        return S, jnp.zeros_like(S)
    explicit = lambda problem, data: _proximal_gradient(problem, S, data, Gamma)  # noqa: E731
    _, moved = eqx.filter_jvp(explicit, (problem, data), (d_problem, d_data))
    _, along = jax.linearize(lambda S: _proximal_gradient(problem, S, data, Gamma), S)  # one eigh for all products
    dS = jax.lax.custom_linear_solve(lambda v: v - along(v), moved, _krylov, transpose_solve=_krylov)
    return S, (dS + dS.T) / 2


def differentiable(problem: AttentionProblem, data: Data, state: AMPState, S0, history, valid) -> AMPEstimate:
    """The estimate at `state`, with derivatives in problem, data and S0; NaN where not `valid`."""
    state, history = jax.lax.stop_gradient((state, history))
    problem, data = trusted((problem, data), valid)
    S = implicit_fixed_point(problem, data, state.S, positive_or_one(state.Gamma))
    return estimate(problem, data, S, state, S0, history)


@eqx.filter_jit
def _again(problem, data, solution, S0):
    known = jax.lax.stop_gradient(solution.value)
    value = differentiable(problem, data, known.state, S0, known.history, solution.successful)
    # A stationary point of another problem would have plausible derivatives here, all of them wrong.
    rounding = 100 * jnp.finfo(known.S.dtype).eps
    value = trusted(value, jax.lax.stop_gradient(value.gradient_norm) <= 2 * known.gradient_norm + rounding)
    return Solution(value, *jax.lax.stop_gradient((solution.result, solution.stats)))


def differentiable_estimate(
    problem: AttentionProblem, data: Data, solution: Solution[AMPEstimate], *, S0: Float[Array, "d d"] | None = None
) -> Solution[AMPEstimate]:
    """What `solve_amp` found, as a function of the problem and the data it was found for.

    The numbers are those of `solution`, computed again from its S by one pass over the data. Differentiating S costs
    one linear system of some 60–150 Hessian-vector products, about the time AMP took: in forward mode for each
    direction, in reverse mode for each functional of S.

    ```python
    found = solve_amp(problem, data)
    at = lambda lam: differentiable_estimate(eqx.tree_at(lambda p: p.denoiser.lam, problem, lam), data, found).value
    _, dS = jax.jvp(lambda lam: at(lam).S, (lam,), (jnp.ones_like(lam),))  # dS/dλ̃
    along_C = jax.grad(lambda lam: jnp.sum(C * at(lam).S))(lam)  # its contraction with a direction C
    ```

    `objective_gradient` gives the derivative of the objective alone without any linear system.

    Args:
        problem, data: those that were solved; for others the estimate is S in their terms, without derivatives (NaN).
        solution: of `solve_amp`; carries no derivative itself.
        S0: target matrix, for `m` and `squared_error`, which are NaN without it.

    Returns:
        The solution, with derivatives in problem, data and S0 of S, objective, train_error, q, m, trace and
        squared_error; V, Gamma, gradient_norm, zero_fraction, history and state have none. Derivatives are NaN where
        `solution` is not successful and where the linear system is not solved.
    """
    check_fits(problem, data, S0=S0, S=solution.value.S)
    dtype = data.dtype
    return _again(cast(problem, dtype), data, solution, target_or_nan(S0, data))


@eqx.filter_jit
def objective_gradient(problem: AttentionProblem, S: Float[Array, "d d"], data: Data) -> AttentionProblem:
    """∂(d⁻²L)/∂θ at fixed S, for every number θ of the problem; at a minimiser the total derivative (envelope).

    Args:
        problem, S, data: as in `training_objective`.

    Returns:
        A problem that holds derivatives in place of numbers: `denoiser.lam` is Tr S/d for the nuclear norm,
        `channel.loss.head.beta` that along β. Zero for what the objective does not read (the target, `alpha`).
    """
    return eqx.filter_grad(lambda problem: training_objective(problem, S, data))(problem)
