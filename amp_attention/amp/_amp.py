"""Matrix AMP for one instance: init, step, terminate."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._solution import RESULTS
from amp_attention._typing import Array, Bool, Float, Int, Scalar, ScalarLike
from amp_attention.amp._damping import AbstractDamping, AutomaticDamping, FixedDamping
from amp_attention.channels import ERMChannel, Guess
from amp_attention.data import Data, Samples, adjoint_sum, replicated, scores, sum_over_samples
from amp_attention.numerics.packing import packed_size
from amp_attention.numerics.validation import AMP_ROUNDING, positive, reachable_tolerance
from amp_attention.objective import loss_and_gradient, stationarity
from amp_attention.problem import AttentionProblem

_UNBOUNDED = 1e12  # Tr S²/d above which the iteration has run away
_THOROUGH = 10  # the first steps, and from then on every so many, look at all minima of each sample's problem


class AMPState(eqx.Module):
    """What one AMP step turns into the next.

    Attributes:
        S: estimate.
        V: its variance, the finite-d counterpart of Σ.
        g: −∇ℓ at the proximal points, per sample.
        z: proximal points of the last step, where the next inner solve starts.
        Gamma: Γ of the last step.
        steps: steps taken.
        thorough: whether the next step looks for minima of the samples' problems away from z.
        control: state of the damping rule.
    """

    S: Float[Array, "d d"]
    V: Scalar
    g: Float[Array, "K n"]
    z: Float[Array, "K n"]
    Gamma: Scalar
    steps: Int[Array, ""]
    thorough: Bool[Array, ""]
    control: Any


class AMPInfo(eqx.Module):
    """What one step tells about itself.

    Attributes:
        residual: of the undamped map, ‖ΔS‖_F/√d + min(V, 1) RMS(Δg) + |ΔV|/(1 + V).
        damping: weight of the old iterate in this step.
        thorough: whether all minima of the samples' problems were looked at.
        result: `successful` if the step could be taken, else why not; the state is then unchanged.
    """

    residual: Scalar
    damping: Scalar
    thorough: Bool[Array, ""]
    result: RESULTS


class ChannelPass(NamedTuple):
    """What one pass over the data finds.

    Attributes:
        field: Σ_μ Σ_{a≤b} g A.
        Gamma: Γ = −α mean tr ∂g, α = n/d².
        g, z: −∇ℓ and the proximal points, per sample.
        change: RMS of the change of g.
    """

    field: Float[Array, "d d"]
    Gamma: Scalar
    g: Float[Array, "K n"]
    z: Float[Array, "K n"]
    change: Scalar


def channel_pass(problem: AttentionProblem, data: Data, state: AMPState) -> ChannelPass:
    """One pass over the data: scores, proximal points, adjoint."""

    def body(shared, samples: Samples):
        channel, S, V, thorough = shared
        g, warm = samples.lanes
        omega = scores(S, samples.X) - V * g
        step = channel.apply(omega, samples.y, V, Guess(warm, thorough))
        field = adjoint_sum(samples.masked(step.g), samples.X)
        change = jnp.sum(samples.masked((step.g - g) ** 2))
        return (field, jnp.sum(samples.masked(step.divergence)), change), (step.g, step.z)

    shared = (problem.channel, state.S, state.V, state.thorough)
    (field, divergence, change), (g, z) = sum_over_samples(body, shared, data, state.g, state.z)
    return ChannelPass(field.matrix, -divergence / data.d**2, g, z, jnp.sqrt(change / (data.n * g.shape[0])))


class AMP(eqx.Module):
    """Matrix AMP for the minimiser of Σℓ + penalty over S (or for its posterior mean, with other parts).

    One step, from (S, V, g):

        ω_μ = z_μ(S) − V g_μ;   g_μ ← −∇ℓ(prox(ω_μ; y_μ, V));   Γ = −α mean_μ tr ∂g_μ,  α = n/d²
        B = (1/d) Σ_μ Σ_{a≤b} g_μ,ab A_μ,ab + Γ S;   (S, V) ← denoiser(B, Γ)

    S, V and g are damped together. A fixed point is a stationary point of the training objective. It costs two products
    of size nT×d×d, one eigendecomposition and n small proximal problems per step; nothing of size n d² is formed.

    The problem of a sample may have several minima, of which the lowest counts. It is solved from the solution of the
    step before; the first ten steps, every tenth, and the last look at the other minima as well.

    Converges where the replicon is below 1 and d is large; at small d the plain iteration often oscillates, which the
    automatic damping is there to notice. If it ends with `max_steps_reached`, raise `max_steps` or fix a damping of
    0.5–0.9. `left_domain` (Γ ≤ 0: the loss is concave on average at the iterate) asks for more damping as well. With
    few samples and little regularisation (n = αd² of a few hundred at α = 0.02, λ̃ = 1e-3) it runs away from S = 0
    whatever the damping: go down in λ̃ from 0.1, each run from the `state` of the one before, or train by gradients.

    ```python
    solver = AMP()
    state = solver.init(problem, data)
    state, info = solver.step(problem, data, state)
    done, result, gradient_norm = solver.terminate(problem, data, state, info)
    ```

    Args:
        tolerance: on the residual of the undamped map and on the KKT residual; by default 1e-8 in float64, 1e-5 in
            float32, and there at least 2.4e-6, where rounding stops both.
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
        """The state at S = `start` with V = 0, or by default where the denoiser starts, and g = 0.

        At V = 0 the first step is one of gradient descent.

        An earlier state for the same data is taken as it is, with the damping rule and the steps begun anew.
        """
        if isinstance(start, AMPState):
            fresh = (self.damping.init(start.S), jnp.int32(0), jnp.asarray(True))
            return eqx.tree_at(lambda s: (s.control, s.steps, s.thorough), start, fresh)
        dtype = data.dtype
        zero, lanes = jnp.zeros((), dtype), data.lanes(packed_size(data.T))
        S, V = problem.denoiser.start(data.d) if start is None else (start, zero)
        first = (jnp.int32(0), jnp.asarray(True))
        S, V, zero, first = replicated((jnp.asarray(S, dtype), jnp.asarray(V, dtype), zero, first), data.mesh)
        return AMPState(S, V, lanes, lanes, zero, *first, self.damping.init(S))

    def step(self, problem: AttentionProblem, data: Data, state: AMPState) -> tuple[AMPState, AMPInfo]:
        """One damped AMP step. Where it cannot be taken the state is returned unchanged."""
        field, Gamma, g, z, g_change = channel_pass(problem, data, state)
        new = problem.denoiser.apply(field / data.d + Gamma * state.S, Gamma)
        change, d_V = new.S - state.S, new.V - state.V
        # Where V → 0, a target found exactly, g ~ V^(-1/2) diverges while the scores that it moves do not.
        moved = jnp.minimum(state.V, 1) * g_change
        residual = jnp.sqrt(jnp.sum(change**2)) / math.sqrt(data.d) + moved + jnp.abs(d_V) / (1 + state.V)

        weight = 1 - state.control.damping
        control = self.damping.update(state.control, residual, change)
        steps = state.steps + 1
        thorough = (steps < _THOROUGH) | (steps % _THOROUGH == 0) | (residual <= self.resolved_tolerance(data))
        stepped = AMPState(
            S=state.S + weight * change,
            V=state.V + weight * d_V,
            g=state.g + weight * (g - state.g),
            z=z,
            Gamma=Gamma,
            steps=steps,
            thorough=thorough,
            control=control,
        )
        result = _classify(residual, Gamma, stepped.S)
        accepted = result == RESULTS.successful
        state_out = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), stepped, state)
        return state_out, AMPInfo(residual, state.control.damping, state.thorough, result)

    def terminate(
        self, problem: AttentionProblem, data: Data, state: AMPState, info: AMPInfo
    ) -> tuple[Bool[Array, ""], RESULTS, Scalar]:
        """Whether to stop, why, and the KKT residual at `state.S` (infinite while it is not worth computing).

        Stops successfully when the residual of the undamped map, with all minima looked at, and the KKT residual are
        both below the tolerance; the second costs another pass over the data and is computed only once the first holds.
        """
        tolerance = self.resolved_tolerance(data)
        close = (info.residual <= tolerance) & info.thorough & (info.result == RESULTS.successful)
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
        dtype = data.dtype
        default = 1e-8 if dtype == jnp.float64 else 1e-5
        tolerance = default if self.tolerance is None else self.tolerance
        return reachable_tolerance("tolerance", tolerance, dtype, AMP_ROUNDING)


def _classify(residual, Gamma, S):
    """Why a step cannot be taken, if it cannot."""
    result = RESULTS.successful
    result = RESULTS.where(jnp.mean(S**2) * S.shape[0] > _UNBOUNDED, RESULTS.diverged, result)
    result = RESULTS.where(Gamma <= 0, RESULTS.left_domain, result)
    finite = jnp.isfinite(Gamma) & ((Gamma <= 0) | (jnp.isfinite(residual) & jnp.all(jnp.isfinite(S))))
    return RESULTS.where(finite, result, RESULTS.nonfinite)
