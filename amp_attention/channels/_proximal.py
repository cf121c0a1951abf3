"""The proximal step of a sample: argmin_z ‖z − ω‖²/2 + Σ ℓ(z; y), for many samples at once.

Written with Σℓ rather than ℓ/(2Σ)-scaled terms so that Σ = 0, where rank collapse and the default start live, is an
ordinary point: there z = ω.
"""

from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from amp_attention._typing import Array, Bool, Float, Scalar
from amp_attention.channels._loss import AbstractLoss, LossDerivatives
from amp_attention.numerics.lanes import eliminate, solve_symmetric

_MAX_STEPS = 200
_TOGETHER = 4  # steps of all lanes together
_FEWEST = 64  # lanes worth a loop of their own
_LARGEST_SHIFT = 1e8


class Proximal(eqx.Module):
    """The objective of one batch of samples, with its derivatives."""

    loss: AbstractLoss
    omega: Float[Array, "K n"]
    y: Float[Array, "... n"]
    variance: Scalar

    def value(self, z: Float[Array, "K n"], loss: Float[Array, " n"] | None = None) -> Float[Array, " n"]:
        """‖z − ω‖²/2 + Σ ℓ(z; y)."""
        loss = self.loss.values(z, self.y) if loss is None else loss
        return jnp.sum((z - self.omega) ** 2, axis=0) / 2 + self.variance * loss

    def __call__(self, z: Float[Array, "K n"]) -> LossDerivatives:
        """The objective and its derivatives."""
        return self.of(z, self.loss.derivatives(z, self.y))

    def of(self, z: Float[Array, "K n"], loss: LossDerivatives) -> LossDerivatives:
        """The same, from those of the loss at z."""
        identity = jnp.eye(z.shape[0], dtype=z.dtype)[..., None]
        gradient = z - self.omega + self.variance * loss.gradient
        return LossDerivatives(self.value(z, loss.values), gradient, identity + self.variance * loss.hessian)


class NewtonState(NamedTuple):
    """State of `damped_newton`.

    Attributes:
        loss: ℓ and its derivatives at the current points.
        shift: μ ≥ 0 added to the Hessian's diagonal, one per lane.
        settled: lanes that are done; they stand still.
    """

    loss: LossDerivatives
    shift: Float[Array, " n"]
    settled: Bool[Array, " n"]


def _size(x):
    return jnp.max(jnp.abs(x), axis=0)


def damped_newton(
    objective: Proximal, thorough: Bool[Array, ""] | bool = True
) -> optax.GradientTransformationExtraArgs:
    """Levenberg-damped Newton steps on many small problems, one a lane (last axis), as an optax transformation.

    Update of a lane: z ← z − (∇² + μI)⁻¹∇, accepted only if the shifted Hessian is positive definite and the objective
    does not grow, up to rounding; otherwise z stays and μ grows. μ falls back to 0 as steps are accepted, so
    convergence is quadratic. A lane has settled when rounding alone makes up its gradient, or an unshifted step was so
    short that the square of its length, the next step, would be below rounding; when not `thorough`, below the square
    root of that.

    The state remembers the derivatives at the current points, so a step costs one evaluation of the loss.
    """

    def short(params):
        eps = float(jnp.finfo(params.dtype).eps)
        return jnp.where(thorough, eps**0.6, eps**0.3).astype(params.dtype)

    def settled(z, derivatives):
        size = _size(z)
        # Rounding of z alone changes the gradient by this much: it cannot be made smaller.
        noise = 1 + _size(objective.omega) + size * (1 + jnp.max(jnp.abs(derivatives.hessian), axis=(0, 1)))
        return _size(derivatives.gradient) <= 4 * jnp.finfo(z.dtype).eps * noise

    def init(params: Any) -> Any:
        loss = objective.loss.derivatives(params, objective.y)
        return NewtonState(loss, jnp.zeros_like(params[0]), settled(params, objective.of(params, loss)))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del updates, extra
        here, shift = objective.of(params, state.loss), state.shift
        shifted = here.hessian + shift[None, None] * jnp.eye(params.shape[0], dtype=params.dtype)[..., None]
        step, pivot = eliminate(shifted, -here.gradient[:, None])
        step = step[:, 0]
        trial = params + step
        loss = objective.loss.derivatives(trial, objective.y)

        eps, scale, length = jnp.finfo(params.dtype).eps, 1 + _size(params), _size(step)
        # Short steps change the objective by less than the rounding of a loss that is a difference of larger numbers.
        tolerated = jnp.where(length <= jnp.sqrt(eps) * scale, eps ** (2 / 3), 4 * eps)
        lower = objective.value(trial, loss.values) <= here.values + tolerated * jnp.abs(here.values)
        accept = ~state.settled & (pivot > 0) & lower
        step = jnp.where(accept, step, jnp.zeros_like(step))
        loss = jax.tree.map(lambda new, old: jnp.where(accept, new, old), loss, state.loss)

        relaxed = jnp.where(shift > 0.01, shift / 10, jnp.zeros_like(shift))
        diagonal = jnp.mean(jnp.abs(jnp.diagonal(here.hessian)), axis=-1)
        raised = jnp.maximum(4 * shift, 0.1 * diagonal)
        last = jnp.where(accept, (shift == 0) & (length <= short(params) * scale), raised >= _LARGEST_SHIFT)
        done = state.settled | last | settled(params + step, objective.of(params + step, loss))
        return step, NewtonState(loss, jnp.where(accept, relaxed, raised), done)

    return optax.GradientTransformationExtraArgs(init, update)


def _newton_minimise(objective: Proximal, start: Float[Array, "K n"], thorough) -> tuple[Array, LossDerivatives]:
    """Minimise every lane from `start` with `damped_newton`: all at first, then an eighth of those left at a time."""

    def steps(optimizer, z, state, most):
        def going(carry):
            _, state, count = carry
            return ~jnp.all(state.settled) & (count < most)

        def body(carry):
            z, state, count = carry
            updates, state = optimizer.update(z, state, z)
            return z + updates, state, count + 1

        z, state, _ = jax.lax.while_loop(going, body, (z, state, jnp.int32(0)))
        return z, state

    def finish(carry):
        z, state = carry
        (lanes,) = jnp.nonzero(~state.settled, size=few, fill_value=0)
        take = lambda tree: jax.tree.map(lambda x: jnp.take(x, lanes, axis=-1), tree)  # noqa: E731
        part = Proximal(objective.loss, take(objective.omega), take(objective.y), objective.variance)
        points, ended = steps(damped_newton(part, thorough), take(z), take(state), _MAX_STEPS)
        ended = ended._replace(settled=jnp.ones_like(ended.settled))
        return jax.tree.map(lambda old, new: old.at[..., lanes].set(new), (z, state), (points, ended))

    optimizer, few = damped_newton(objective, thorough), start.shape[-1] // 8
    z, state = start, cast(NewtonState, optimizer.init(start))
    if few < _FEWEST:
        z, state = steps(optimizer, z, state, _MAX_STEPS)
    else:
        z, state = steps(optimizer, z, state, _TOGETHER)
        z, state = jax.lax.while_loop(lambda carry: ~jnp.all(carry[1].settled), finish, (z, state))
    return z, cast(NewtonState, state).loss


def _optax_minimise(
    objective: Proximal, start: Float[Array, "K n"], optimizer: optax.GradientTransformation
) -> tuple[Array, LossDerivatives]:
    """Minimise each sample on its own with any optax optimiser."""
    solver = optax.with_extra_args_support(optimizer)

    def one(sample):
        omega, y, z = sample
        lane = Proximal(objective.loss, omega[:, None], y[..., None], objective.variance)
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

        return jax.lax.while_loop(cond, body, (z, solver.init(z), jax.grad(value_fn)(z), jnp.int32(0)))[0]

    samples = (objective.omega.T, jnp.moveaxis(objective.y, -1, 0), start.T)
    z = jax.lax.map(one, samples, batch_size=256).T
    return z, objective.loss.derivatives(z, objective.y)


def _minimise(loss, omega, y, variance, starts, thorough, optimizer):
    """The lowest of the minima reached from the starts, one after the other."""
    objective = Proximal(loss, omega, y, variance)

    def attempt(index, best):
        if optimizer is None:
            z, derivatives = _newton_minimise(objective, starts[index], thorough)
        else:
            z, derivatives = _optax_minimise(objective, starts[index], optimizer)
        value = objective.value(z, derivatives.values)
        lower = (value < best[0]) | (index == 0)
        return jax.tree.map(lambda new, old: jnp.where(lower, new, old), (value, z, derivatives), best)

    K, n = omega.shape
    zeros = lambda *shape: jnp.zeros(shape, omega.dtype)  # noqa: E731
    blank = (zeros(n), zeros(K, n), LossDerivatives(zeros(n), zeros(K, n), zeros(K, K, n)))
    _, z, derivatives = jax.lax.fori_loop(0, jnp.where(thorough, starts.shape[0], 1), attempt, blank)
    return z, derivatives


@eqx.filter_custom_jvp
def proximal_point(
    loss: AbstractLoss,
    omega: Float[Array, "K n"],
    y: Float[Array, "... n"],
    variance: Scalar,
    *,
    starts: Float[Array, "S K n"],
    thorough: Bool[Array, ""] | bool = True,
    optimizer: optax.GradientTransformation | None = None,
) -> tuple[Float[Array, "K n"], LossDerivatives]:
    """z* = argmin_z ‖z − ω‖²/2 + Σ ℓ(z; y) of each sample, the lowest of the minima reached from the starts.

    Derivatives of every order by the implicit function theorem on z − ω + Σ∇ℓ(z; y) = 0: dz* = (I + ΣH)⁻¹ times the
    change of that equation, H = ∇²ℓ(z*).

    Args:
        loss: the loss of one sample.
        omega: (K, n) centres ω.
        y: labels, samples last.
        variance: Σ ≥ 0 (V at finite d).
        starts: (S, K, n) starting points; not differentiated.
        thorough: whether all starts are tried and followed to rounding, or the first only, as far as one short step.
        optimizer: an optax optimiser that minimises each sample on its own; None for `damped_newton` on all at once.

    Returns:
        z* of shape (K, n), and the loss with its derivatives there.
    """
    return _minimise(loss, omega, y, variance, starts, thorough, optimizer)


@proximal_point.def_jvp
def _proximal_point_jvp(primals, tangents, **options):
    loss, omega, y, variance = primals
    d_loss, _, d_y, _ = tangents
    z, derivatives = proximal_point(loss, omega, y, variance, **options)

    def equation(loss, omega, y, variance):
        return z - omega + variance * loss.gradient(z, y)

    _, change = eqx.filter_jvp(equation, primals, tangents)
    hessian = Proximal(loss, omega, y, variance).of(z, derivatives).hessian
    dz = solve_symmetric(hessian, -change[:, None])[:, 0]
    _, moved = eqx.filter_jvp(lambda loss, z, y: loss.derivatives(z, y), (loss, z, y), (d_loss, dz, d_y))
    return (z, derivatives), (dz, moved)
