"""Derivatives of solved equations, by the implicit function theorem.

A solver finds y outside of differentiation; `implicit_root` then makes y a differentiable function of whatever the
equations depend on, in every mode and to every order, and `trusted` makes derivatives NaN where it did not converge.
"""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Bool, Float

Tree = TypeVar("Tree")


@eqx.filter_custom_jvp
def implicit_root(residual: Callable, y: Float[Array, " N"], args) -> Float[Array, " N"]:
    """The solution y of residual(y, args) = 0, already found, as a differentiable function of `args`.

    dy = −(∂residual/∂y)⁻¹ ∂residual/∂args d(args). N is small: the Jacobian is formed and solved densely. Where it is
    singular the derivative is infinite or NaN.

    Args:
        residual: (y, args) ↦ (N,); a plain function that closes over nothing that is differentiated.
        y: the solution; what it was computed from carries no derivative.
        args: pytree of what the equations depend on.

    Returns:
        y.
    """
    return y


@implicit_root.def_jvp
def _implicit_root_jvp(primals, tangents):
    residual, solution, args = primals
    y = implicit_root(residual, solution, args)  # again, so that derivatives of this rule are right as well
    if not jax.tree.leaves(tangents[2]):
        return y, jnp.zeros_like(y)
    _, moved = eqx.filter_jvp(lambda args: residual(y, args), (args,), (tangents[2],))
    jacobian = jax.jacfwd(lambda y: residual(y, args))(y)
    return y, -jnp.linalg.solve(jacobian, moved)


@eqx.filter_custom_jvp
def trusted(tree: Tree, valid: Bool[Array, ""]) -> Tree:
    """`tree` itself; every derivative along it is NaN where not `valid`.

    Placed between the numbers of a problem and what is computed from a solution, it keeps a solution that did not
    converge from having derivatives, forward and reverse.
    """
    return tree


@trusted.def_jvp
def _trusted_jvp(primals, tangents):
    tree, valid = primals
    scale = lambda t: t * jnp.where(valid, 1, jnp.nan).astype(t.dtype)  # noqa: E731
    return trusted(tree, valid), jax.tree.map(scale, tangents[0])
