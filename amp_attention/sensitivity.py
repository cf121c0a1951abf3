"""Derivatives of what state evolution predicts, at a fixed point already solved.

Every number of a problem enters Φ smoothly. At the fixed point x = F(x, θ) an observable E(x, θ) has the derivative
dE/dθ = ∂E/∂θ + ∂E/∂x (1 − ∂F/∂x)⁻¹ ∂F/∂θ, one linear solve of three unknowns; that of Φ* itself needs none, since Φ is
stationary (envelope theorem): dΦ*/dθ = ∂Φ/∂θ.

Source: arXiv:2509.24914; implicit function theorem.
"""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._solution import Solution
from amp_attention._typing import Array, Scalar, ScalarLike
from amp_attention.numerics.implicit import trusted
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution import FixedPoint, Nodes, free_entropy, implicit_fixed_point, solves

Observable = str | Callable[[AttentionProblem, FixedPoint], Scalar]

# Where each named number of a problem lives. The gradient has the shape of the problem, so these read it too.
PARAMETERS: Mapping[str, Callable[[AttentionProblem], Array]] = {
    "alpha": lambda p: p.alpha,
    "lam": lambda p: p.denoiser.lam,  # pyright: ignore[reportAttributeAccessIssue]
    "beta": lambda p: p.channel.loss.head.beta,  # pyright: ignore[reportAttributeAccessIssue]
    "beta0": lambda p: p.target.head.beta,  # pyright: ignore[reportAttributeAccessIssue]
    "noise": lambda p: p.target.noise,
    "kappa0": lambda p: p.target.law.kappa0,  # pyright: ignore[reportAttributeAccessIssue]
}


def parameter(problem: AttentionProblem, name: str) -> Array | None:
    """The number called `name` (a key of `PARAMETERS`); None if this problem has none.

    Raises:
        ValueError: for a name that no problem has.
    """
    if name not in PARAMETERS:
        raise ValueError(f"parameter must be one of {', '.join(PARAMETERS)}, got {name!r}")
    try:
        return PARAMETERS[name](problem)
    except AttributeError:
        return None


def with_parameter(problem: AttentionProblem, name: str, value: ScalarLike) -> AttentionProblem:
    """The problem with another value of one of its numbers.

    Raises:
        ValueError: for a name that this problem does not have.
    """
    old = parameter(problem, name)
    if old is None:
        raise ValueError(f"parameter must be a number that this problem has, got {name!r}")
    return eqx.tree_at(PARAMETERS[name], problem, jnp.asarray(value, old.dtype))


def observable(of: Observable) -> Callable[[AttentionProblem, FixedPoint], Scalar]:
    """A function (problem, fixed point) ↦ scalar, given itself or as the name of a field of the fixed point.

    Raises:
        ValueError: for a name that is not a field.
    """
    if callable(of):
        return of
    names = [name for name in FixedPoint.__dataclass_fields__ if name != "standard_error"]
    if of not in names:
        raise ValueError(f"of must be one of {', '.join(names)}, got {of!r}")
    return lambda _, point: getattr(point, of)


class Gradient(eqx.Module):
    """First derivatives of an observable.

    Attributes:
        value: the observable.
        problem: its derivative in every number of the problem, in the place of that number.
    """

    value: Scalar
    problem: AttentionProblem

    def __getitem__(self, name: str) -> Array | None:
        """The derivative in the number called `name`, a key of `PARAMETERS`; None where the problem has none."""
        return parameter(self.problem, name)

    @property
    def named(self) -> dict[str, Array | None]:
        """By name, all `PARAMETERS`."""
        return {name: self[name] for name in PARAMETERS}


@eqx.filter_jit
def gradient(
    problem: AttentionProblem, nodes: Nodes, solution: Solution[FixedPoint], of: Observable = "test_error"
) -> Gradient:
    """Derivatives of an observable in every number of the problem, by one adjoint solve.

    β and β0 are two numbers here, also where they are equal.

    Args:
        problem, nodes: those of the solution.
        solution: a solved fixed point.
        of: a field of `FixedPoint`, or a function (problem, fixed point) ↦ scalar.

    Returns:
        `Gradient`; NaN where the solution is not `successful`.

    Raises:
        ValueError: for a name that is not a field.
    """
    read = observable(of)
    value, slope = eqx.filter_value_and_grad(lambda p: read(p, implicit_fixed_point(p, nodes, solution)))(problem)
    return Gradient(value, slope)


class Expansion(eqx.Module):
    """An observable along one number of the problem: value, first and second derivative."""

    value: Scalar
    first: Scalar
    second: Scalar


def _existing(problem: AttentionProblem, along: str) -> Array:
    number = parameter(problem, along)
    if number is None:
        raise ValueError(f"along must be a number that this problem has, got {along!r}")
    return number


def _along(problem, nodes, solution, of, name) -> tuple[Callable[[Scalar], Scalar], Scalar]:
    """The observable as a function of one number, and the number."""
    read, start = observable(of), _existing(problem, name)

    def value(t):
        moved = with_parameter(problem, name, t)
        return read(moved, implicit_fixed_point(moved, nodes, solution))

    return value, start


def _value_and_slope(function: Callable[[Scalar], Scalar], t: Scalar) -> tuple[Scalar, Scalar]:
    return jax.jvp(function, (t,), (jnp.ones_like(t),))


def slope(
    problem: AttentionProblem,
    nodes: Nodes,
    solution: Solution[FixedPoint],
    of: Observable = "test_error",
    along: str = "lam",
) -> tuple[Scalar, Scalar]:
    """Value and first derivative of an observable along one number, by forward mode.

    The fixed point's own derivative is compiled once for all observables and numbers.

    Args:
        problem, nodes, solution, of: as in `gradient`.
        along: a key of `PARAMETERS`.

    Raises:
        ValueError: for names that do not exist here.
    """
    numbers = _existing(problem, along)
    direction = jax.tree.map(jnp.zeros_like, eqx.filter(problem, eqx.is_inexact_array))
    direction = with_parameter(direction, along, jnp.ones_like(numbers))
    return _read_along(of, problem, direction, *_response(problem, nodes, solution, direction))


@eqx.filter_jit
def _response(problem, nodes, solution, direction) -> tuple[FixedPoint, FixedPoint]:
    """The fixed point and its derivative along a direction in the numbers of the problem."""
    return eqx.filter_jvp(lambda p: implicit_fixed_point(p, nodes, solution), (problem,), (direction,))


@eqx.filter_jit
def _read_along(of, problem, direction, point, response) -> tuple[Scalar, Scalar]:
    return eqx.filter_jvp(observable(of), (problem, point), (direction, response))


@eqx.filter_jit
def expansion(
    problem: AttentionProblem,
    nodes: Nodes,
    solution: Solution[FixedPoint],
    of: Observable = "test_error",
    along: str = "lam",
) -> Expansion:
    """`slope` with the second derivative as well, by forward mode twice."""
    function, start = _along(problem, nodes, solution, of, along)
    (value, first), (_, second) = jax.jvp(lambda t: _value_and_slope(function, t), (start,), (jnp.ones_like(start),))
    return Expansion(value, first, second)


@eqx.filter_jit
def envelope_gradient(problem: AttentionProblem, nodes: Nodes, solution: Solution[FixedPoint]) -> Gradient:
    """Derivatives of Φ* = d⁻²L in every number of the problem, at fixed order parameters: no linear solve.

    dΦ*/dλ̃ = Tr S/d and dΦ*/dα = M are two of them.

    Args:
        problem, nodes, solution: as in `gradient`.

    Returns:
        `Gradient`; NaN where the solution is not `successful`, or is that of another problem.
    """
    order, valid = jax.lax.stop_gradient(solution.value.order), solves(problem, nodes, solution)
    at_fixed_order = lambda p: free_entropy(trusted(p, valid), order, nodes)  # noqa: E731
    return Gradient(*eqx.filter_value_and_grad(at_fixed_order)(problem))
