"""What AMP returns, and its numbers as functions of S."""

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar
from amp_attention.amp._amp import AMPState
from amp_attention.channels import AbstractLoss, ERMChannel
from amp_attention.data import Data
from amp_attention.objective import loss_and_gradient, stationarity, training_loss
from amp_attention.problem import AttentionProblem


class AMPHistory(eqx.Module):
    """Order parameters after each step, in arrays of `max_steps` entries; NaN beyond the last step.

    Attributes:
        q: Tr S²/d.
        m: Tr(S S0)/d; NaN without S0.
        V, Gamma: V and Γ.
        residual: of the undamped map, at the iterate the step started from.
        damping: weight of the old iterate.
    """

    q: Float[Array, " steps"]
    m: Float[Array, " steps"]
    V: Float[Array, " steps"]
    Gamma: Float[Array, " steps"]
    residual: Float[Array, " steps"]
    damping: Float[Array, " steps"]


class AMPEstimate(eqx.Module):
    """Where AMP ended.

    S and what is a function of it (objective, train_error, q, m, trace, squared_error) have derivatives in the problem
    and in the data; the other fields tell how the solver got there and have none.

    Attributes:
        S: the estimate.
        V, Gamma: variance and Γ of the last step.
        objective: d⁻²L at S.
        train_error: d⁻²Σℓ at S.
        gradient_norm: KKT residual at S, 0 at a minimiser.
        q, m, trace: Tr S²/d, Tr(S S0)/d (NaN without S0), Tr S/d.
        squared_error: ‖S − S0‖²_F/d; NaN without S0.
        zero_fraction: fraction of zero eigenvalues of S.
        history: order parameters step by step.
        state: the solver's state, to go on from (`start=`).
    """

    S: Float[Array, "d d"]
    V: Scalar
    Gamma: Scalar
    objective: Scalar
    train_error: Scalar
    gradient_norm: Scalar
    q: Scalar
    m: Scalar
    trace: Scalar
    squared_error: Scalar
    zero_fraction: Scalar
    history: AMPHistory
    state: AMPState


def overlap(A: Float[Array, "d d"], B: Float[Array, "d d"]) -> Scalar:
    """Tr(AᵀB)/d."""
    return jnp.sum(A * B) / A.shape[0]


def target_or_nan(S0: Float[Array, "d d"] | None, data: Data) -> Float[Array, "d d"]:
    """S0 in the dtype of the data, or NaN, so that arguments have one structure (one compilation) with and without."""
    dtype = data.dtype
    return jnp.full((data.d, data.d), jnp.nan, dtype) if S0 is None else jnp.asarray(S0, dtype)


@eqx.filter_custom_jvp
def _known_loss(value, gradient, loss: AbstractLoss, S, data: Data):
    """d⁻²Σℓ whose value and gradient (1/d)∇_S Σℓ are known: its derivative along S needs no pass over the data.

    What `value` and `gradient` carry counts for higher derivatives only.
    """
    return value


@_known_loss.def_jvp
def _known_loss_jvp(primals, tangents):
    value, gradient, loss, S, data = primals
    _, _, d_loss, dS, d_data = tangents
    tangent = jnp.zeros_like(value) if dS is None else jnp.sum(gradient * dS) / data.d
    if jax.tree.leaves((d_loss, d_data)):
        explicit = lambda loss, data: training_loss(loss, S, data)  # noqa: E731
        tangent += eqx.filter_jvp(explicit, (loss, data), (d_loss, d_data))[1]
    return _known_loss(*primals), tangent


def positive_or_one(Gamma: Scalar) -> Scalar:
    """Γ where it is positive, else 1, so that a state without a Γ can be reported on."""
    return jnp.where(Gamma > 0, Gamma, jnp.ones_like(Gamma))


def estimate(problem: AttentionProblem, data: Data, S, state: AMPState, S0, history: AMPHistory) -> AMPEstimate:
    """Everything reported about a state, by one pass over the data.

    Args:
        problem, data: what the numbers depend on besides S.
        S: `state.S`, carrying the derivatives its numbers are to have.
        state, history: carry none.
        S0: target matrix; NaN where it is not known.
    """
    nan = jnp.full((), jnp.nan, S.dtype)
    train_error = gradient_norm = objective = zero_fraction = nan
    if isinstance(problem.channel, ERMChannel):
        loss = problem.channel.loss
        value, gradient = loss_and_gradient(loss, S, data)
        train_error = _known_loss(value, gradient, loss, S, data)
        objective = train_error + problem.denoiser.objective(S)
        certificate = stationarity(
            *jax.lax.stop_gradient((problem.denoiser, S, gradient)), positive_or_one(state.Gamma)
        )
        gradient_norm, zero_fraction = certificate.gradient_norm, certificate.zero_fraction
    return AMPEstimate(
        S=S,
        V=state.V,
        Gamma=state.Gamma,
        objective=objective,
        train_error=train_error,
        gradient_norm=gradient_norm,
        q=overlap(S, S),
        m=overlap(S, S0),
        trace=jnp.trace(S) / data.d,
        squared_error=overlap(S - S0, S - S0),
        zero_fraction=zero_fraction,
        history=history,
        state=state,
    )
