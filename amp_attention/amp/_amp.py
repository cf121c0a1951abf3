"""Matrix AMP for one instance: init, step, terminate."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._solution import RESULTS
from amp_attention._typing import Array, Bool, Float, Scalar, ScalarLike
from amp_attention.amp._damping import AbstractDamping, AutomaticDamping, FixedDamping
from amp_attention.channels import ERMChannel
from amp_attention.data import Data, adjoint, fold_chunks, scores
from amp_attention.numerics.packing import packed_size
from amp_attention.numerics.validation import positive
from amp_attention.objective import loss_and_gradient, stationarity
from amp_attention.problem import AttentionProblem

_UNBOUNDED = 1e12  # Tr S²/d above which the iteration has run away


class AMPState(eqx.Module):
    """What one AMP step turns into the next.

    Attributes:
        S: estimate.
        V: its variance, the finite-d counterpart of Σ.
        g: −∇ℓ at the proximal points, per sample.
        z: proximal points of the last step, where the next inner solve starts.
        Gamma: Γ of the last step.
        control: state of the damping rule.
    """

    S: Float[Array, "d d"]
    V: Scalar
    g: Float[Array, "K n"]
    z: Float[Array, "K n"]
    Gamma: Scalar
    control: Any


class AMPInfo(eqx.Module):
    """What one step tells about itself.

    Attributes:
        residual: of the undamped map, ‖ΔS‖_F/√d + RMS(Δg) + |ΔV|/(1 + V).
        damping: weight of the old iterate in this step.
        result: `successful` if the step could be taken, else why not; the state is then unchanged.
    """

    residual: Scalar
    damping: Scalar
    result: RESULTS


def _rms(x):
    return jnp.sqrt(jnp.mean(x**2))


def channel_pass(problem: AttentionProblem, data: Data, state: AMPState):
    """One pass over the data: scores, proximal points, adjoint.

    Returns:
        Σ_μ Σ_{a≤b} g A, Γ = −α mean tr ∂g (α = n/d²), and the new g and z.
    """
    S, V = state.S, state.V

    def body(carry, chunk):
        field, divergence = carry
        X, y = data.take(chunk)
        omega = scores(S, X) - V * chunk.take(state.g, -1)
        step = problem.channel.apply(omega, y, V, warm=chunk.take(state.z, -1))
        field = field + adjoint(chunk.masked(step.g), X)
        return (field, divergence + jnp.sum(chunk.masked(step.divergence))), (step.g, step.z)

    init = (jnp.zeros_like(S), jnp.zeros_like(V))
    (field, divergence), (g, z) = fold_chunks(body, init, data.n)
    return field, -divergence / data.d**2, g, z


class AMP(eqx.Module):
    """Matrix AMP for the minimiser of Σℓ + penalty over S (or for its posterior mean, with other parts).

    One step, from (S, V, g):

        ω_μ = z_μ(S) − V g_μ;   g_μ ← −∇ℓ(prox(ω_μ; y_μ, V));   Γ = −α mean_μ tr ∂g_μ,  α = n/d²
        B = (1/d) Σ_μ Σ_{a≤b} g_μ,ab A_μ,ab + Γ S;   (S, V) ← denoiser(B, Γ)

    S, V and g are damped together. A fixed point is a stationary point of the training objective. It costs two products
    of size nT×d×d, one eigendecomposition and n small proximal problems per step; nothing of size n d² is formed.

    Converges where the replicon is below 1 and d is large; at small d the plain iteration often oscillates, which the
    automatic damping is there to notice. If it ends with `max_steps_reached`, raise `max_steps` or fix a damping of
    0.5–0.9. `left_domain` (Γ ≤ 0: the loss is concave on average at the iterate) asks for more damping as well.

    ```python
    solver = AMP()
    state = solver.init(problem, data)
    state, info = solver.step(problem, data, state)
    done, result, gradient_norm = solver.terminate(problem, data, state, info)
    ```

    Args:
        tolerance: on the residual of the undamped map and on the KKT residual; by default 1e-8 in float64, 1e-5 in
            float32.
        damping: weight of the old iterate, 0 ≤ damping < 1; None for `AutomaticDamping`; or any `AbstractDamping`.

    Source: arXiv:2509.24914.
    """

    tolerance: Float[Array, ""] | None
    damping: AbstractDamping

    def __init__(self, tolerance: ScalarLike | None = None, damping: ScalarLike | AbstractDamping | None = None):
        self.tolerance = None if tolerance is None else positive("tolerance", tolerance)
        if damping is None:
            damping = AutomaticDamping()
        self.damping = damping if isinstance(damping, AbstractDamping) else FixedDamping(damping)

    def init(
        self, problem: AttentionProblem, data: Data, start: "AMPState | Float[Array, 'd d'] | None" = None
    ) -> AMPState:
        """The state at S = `start` (0 by default) with g = 0, V = 0, where the first step is one of gradient descent.

        An earlier state for the same data is taken as it is, with the damping rule begun anew.
        """
        if isinstance(start, AMPState):
            return eqx.tree_at(lambda s: s.control, start, self.damping.init(start.S))
        dtype = data.X.dtype
        S = jnp.zeros((data.d, data.d), dtype) if start is None else jnp.asarray(start, dtype)
        zero, lanes = jnp.zeros((), dtype), jnp.zeros((packed_size(data.T), data.n), dtype)
        return AMPState(S, zero, lanes, lanes, zero, self.damping.init(S))

    def step(self, problem: AttentionProblem, data: Data, state: AMPState) -> tuple[AMPState, AMPInfo]:
        """One damped AMP step. Where it cannot be taken the state is returned unchanged."""
        field, Gamma, g, z = channel_pass(problem, data, state)
        new = problem.denoiser.apply(field / data.d + Gamma * state.S, Gamma)
        change, d_g, d_V = new.S - state.S, g - state.g, new.V - state.V
        residual = jnp.sqrt(jnp.sum(change**2)) / math.sqrt(data.d) + _rms(d_g) + jnp.abs(d_V) / (1 + state.V)

        weight = 1 - state.control.damping
        control = self.damping.update(state.control, residual, change)
        stepped = AMPState(state.S + weight * change, state.V + weight * d_V, state.g + weight * d_g, z, Gamma, control)
        result = _classify(residual, Gamma, stepped.S)
        accepted = result == RESULTS.successful
        state_out = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), stepped, state)
        return state_out, AMPInfo(residual, state.control.damping, result)

    def terminate(
        self, problem: AttentionProblem, data: Data, state: AMPState, info: AMPInfo
    ) -> tuple[Bool[Array, ""], RESULTS, Scalar]:
        """Whether to stop, why, and the KKT residual at `state.S` (infinite while it is not worth computing).

        Stops successfully when the residual of the undamped map and the KKT residual are both below the tolerance; the
        second costs another pass over the data and is computed only once the first holds.
        """
        tolerance = self.resolved_tolerance(data)
        close = (info.residual <= tolerance) & (info.result == RESULTS.successful)
        gradient_norm = jax.lax.cond(
            close,
            lambda: self.certificate(problem, data, state),
            lambda: jnp.full((), jnp.inf, state.S.dtype),
        )
        converged = close & (gradient_norm <= tolerance)
        return converged | (info.result != RESULTS.successful), info.result, gradient_norm

    def certificate(self, problem: AttentionProblem, data: Data, state: AMPState) -> Scalar:
        """KKT residual of the training objective at S; 0 for channels that minimise nothing."""
        if not isinstance(problem.channel, ERMChannel):
            return jnp.zeros((), state.S.dtype)
        _, gradient = loss_and_gradient(problem.channel.loss, state.S, data)
        return stationarity(problem.denoiser, state.S, gradient, state.Gamma).gradient_norm

    def resolved_tolerance(self, data: Data) -> Scalar:
        """The tolerance in the dtype of the data."""
        dtype = data.X.dtype
        default = 1e-8 if dtype == jnp.float64 else 1e-5
        return jnp.asarray(default if self.tolerance is None else self.tolerance, dtype)


def _classify(residual, Gamma, S):
    """Why a step cannot be taken, if it cannot."""
    result = RESULTS.successful
    result = RESULTS.where(jnp.mean(S**2) * S.shape[0] > _UNBOUNDED, RESULTS.diverged, result)
    result = RESULTS.where(Gamma <= 0, RESULTS.left_domain, result)
    finite = jnp.isfinite(Gamma) & ((Gamma <= 0) | (jnp.isfinite(residual) & jnp.all(jnp.isfinite(S))))
    return RESULTS.where(finite, result, RESULTS.nonfinite)
