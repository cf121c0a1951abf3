"""The proximal step of a sample: argmin_z ‖z − ω‖²/2 + Σ ℓ(z; y), for many samples at once.

Written with Σℓ rather than ℓ/(2Σ)-scaled terms so that Σ = 0, where rank collapse and the default start live, is an
ordinary point: there z = ω.
"""

from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from amp_attention._typing import Array, Float, Int, Scalar
from amp_attention.channels._loss import AbstractLoss
from amp_attention.numerics.lanes import solve_symmetric

_MAX_STEPS = 200


class _Proximal(eqx.Module):
    """The objective of one batch of samples, with its derivatives."""

    loss: AbstractLoss
    omega: Float[Array, "K n"]
    y: Float[Array, "... n"]
    variance: Scalar

    def value(self, z):
        return jnp.sum((z - self.omega) ** 2, axis=0) / 2 + self.variance * self.loss.values(z, self.y)

    def gradient(self, z):
        return z - self.omega + self.variance * self.loss.gradient(z, self.y)

    def hessian(self, z):
        identity = jnp.eye(z.shape[0], dtype=z.dtype)[..., None]
        return identity + self.variance * self.loss.hessian(z, self.y)


class NewtonState(NamedTuple):
    """State of `damped_newton`: the shift μ ≥ 0 of the Hessian's diagonal, one per lane."""

    shift: Float[Array, " n"]


def damped_newton() -> optax.GradientTransformationExtraArgs:
    """Levenberg-damped Newton steps on many small problems, one a lane (last axis), as an optax transformation.

    Update of a lane: z ← z − (∇² + μI)⁻¹∇, accepted only if the shifted Hessian is positive definite and the objective
    does not grow, or the step is too short for the objective to tell; otherwise z stays and μ grows. μ falls back to 0
    as steps are accepted, so convergence is quadratic.
    `update` takes the keyword arguments `value` (n,), `value_fn` and `hessian` (K, K, n).
    """

    def init(params: Any) -> Any:
        return NewtonState(jnp.zeros_like(params[0]))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        value, value_fn, hessian = extra["value"], extra["value_fn"], extra["hessian"]
        shifted = hessian + state.shift[None, None] * jnp.eye(params.shape[0], dtype=params.dtype)[..., None]
        step, pivot = solve_symmetric(shifted, -updates[:, None])
        step = step[:, 0]
        trial = value_fn(params + step)
        eps = jnp.finfo(params.dtype).eps
        short = jnp.max(jnp.abs(step), axis=0) <= jnp.sqrt(eps) * (1 + jnp.max(jnp.abs(params), axis=0))
        accept = (pivot > 0) & (short | (trial <= value + 4 * eps * jnp.abs(value)))
        relaxed = jnp.where(state.shift > 0.01, state.shift / 10, jnp.zeros_like(state.shift))
        scale = jnp.mean(jnp.abs(jnp.diagonal(hessian)), axis=-1)
        raised = jnp.maximum(4 * state.shift, 0.1 * scale)
        return jnp.where(accept, step, jnp.zeros_like(step)), NewtonState(jnp.where(accept, relaxed, raised))

    return optax.GradientTransformationExtraArgs(init, update)


def _newton_minimise(problem: _Proximal, start: Float[Array, "K n"]) -> tuple[Array, Int[Array, ""]]:
    """Minimise every lane from `start` with `damped_newton`; lanes that are done stand still."""
    optimizer = damped_newton()
    eps = jnp.finfo(start.dtype).eps

    def active(z, gradient, hessian, moved):
        size = jnp.max(jnp.abs(z), axis=0)
        scale = 1 + size + jnp.max(jnp.abs(problem.omega), axis=0)
        # Rounding of z alone changes the gradient by this much: it cannot be made smaller.
        noise = jnp.max(jnp.abs(hessian), axis=(0, 1)) * size
        return (jnp.max(jnp.abs(gradient), axis=0) > 4 * eps * (scale + noise)) & (moved > 2 * eps * scale)

    def cond(carry):
        return jnp.any(carry[-1]) & (carry[-2] < _MAX_STEPS)

    def body(carry):
        z, state, steps, alive = carry
        gradient = problem.gradient(z)
        hessian = problem.hessian(z)
        arguments = {"value": problem.value(z), "value_fn": problem.value, "hessian": hessian}
        updates, new_state = cast(tuple[Array, NewtonState], optimizer.update(gradient, state, z, **arguments))
        updates = jnp.where(alive, updates, jnp.zeros_like(updates))
        rejected = jnp.max(jnp.abs(updates), axis=0) == 0
        # A rejected step says nothing about convergence unless the shift has already made it negligible.
        moved = jnp.where(rejected & (new_state.shift < 1e8), jnp.inf, jnp.max(jnp.abs(updates), axis=0))
        return z + updates, new_state, steps + 1, alive & active(z, gradient, hessian, moved)

    alive = jnp.ones(start.shape[1:], bool)
    z, _, steps, _ = jax.lax.while_loop(cond, body, (start, optimizer.init(start), jnp.int32(0), alive))
    return z, steps


def _optax_minimise(
    problem: _Proximal, start: Float[Array, "K n"], optimizer: optax.GradientTransformation
) -> tuple[Array, Int[Array, ""]]:
    """Minimise each sample on its own with any optax optimiser."""
    solver = optax.with_extra_args_support(optimizer)

    def one(sample):
        omega, y, z = sample
        lane = _Proximal(problem.loss, omega[:, None], y[..., None], problem.variance)
        value_fn = lambda z: lane.value(z[:, None])[0]  # noqa: E731
        eps = jnp.finfo(z.dtype).eps

        def cond(carry):
            z, _, gradient, steps = carry
            small = jnp.max(jnp.abs(gradient)) <= 100 * eps * (1 + jnp.max(jnp.abs(z)) + jnp.max(jnp.abs(omega)))
            return ~small & (steps < 20 * _MAX_STEPS)

        def body(carry):
            z, state, gradient, steps = carry
            with jax.numpy_dtype_promotion("standard"):  # optax's own optimisers mix dtypes
                updates, state = solver.update(gradient, state, z, value=value_fn(z), grad=gradient, value_fn=value_fn)
            z = optax.apply_updates(z, updates)
            return z, state, jax.grad(value_fn)(z), steps + 1

        carry = (z, solver.init(z), jax.grad(value_fn)(z), jnp.int32(0))
        z, _, _, steps = jax.lax.while_loop(cond, body, carry)
        return z, steps

    samples = (problem.omega.T, jnp.moveaxis(problem.y, -1, 0), start.T)
    z, steps = jax.lax.map(one, samples, batch_size=256)
    return z.T, jnp.max(steps)


def _minimise(loss, omega, y, variance, starts, optimizer):
    """The lowest of the minima reached from the starts."""
    count, n = starts.shape[0], omega.shape[1]
    spread = _Proximal(loss, jnp.tile(omega, (1, count)), jnp.tile(y, (1,) * (y.ndim - 1) + (count,)), variance)
    joined = jnp.moveaxis(starts, 0, 1).reshape(starts.shape[1], count * n)
    if optimizer is None:
        z, _ = _newton_minimise(spread, joined)
    else:
        z, _ = _optax_minimise(spread, joined, optimizer)
    values = spread.value(z).reshape(count, n)
    z = z.reshape(-1, count, n)
    best = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values), axis=0)
    return jnp.take_along_axis(z, best[None, None], axis=1)[:, 0]


@eqx.filter_custom_jvp
def proximal_point(loss, omega, y, variance, *, starts, optimizer=None):
    """z* = argmin_z ‖z − ω‖²/2 + Σ ℓ(z; y) of each sample, the lowest of the minima reached from the starts.

    Derivatives of every order by the implicit function theorem on z − ω + Σ∇ℓ(z; y) = 0: dz* = (I + ΣH)⁻¹ times the
    change of that equation, H = ∇²ℓ(z*).

    Args:
        loss: the loss of one sample.
        omega: (K, n) centres ω.
        y: labels, samples last.
        variance: Σ ≥ 0 (V at finite d).
        starts: (S, K, n) starting points; not differentiated.
        optimizer: an optax optimiser that minimises each sample on its own; None for `damped_newton` on all at once.

    Returns:
        z* of shape (K, n).
    """
    return _minimise(loss, omega, y, variance, starts, optimizer)


@proximal_point.def_jvp
def _proximal_point_jvp(primals, tangents, *, starts, optimizer):
    loss, omega, y, variance = primals
    z = proximal_point(loss, omega, y, variance, starts=starts, optimizer=optimizer)

    def equation(loss, omega, y, variance):
        return _Proximal(loss, omega, y, variance).gradient(z)

    _, change = eqx.filter_jvp(equation, primals, tangents)
    dz, _ = solve_symmetric(_Proximal(loss, omega, y, variance).hessian(z), -change[:, None])
    return z, dz[:, 0]
