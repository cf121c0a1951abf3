"""What one sample says: the interface of channels."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from amp_attention._typing import Array, Bool, Float, Scalar
from amp_attention.heads import AbstractHead
from amp_attention.targets import Target


class Guess(eqx.Module):
    """What is known of the solutions of the samples' problems before they are solved.

    Attributes:
        points: where each solution starts, samples last (NaN: where it would start anyway); None if nothing is known.
        thorough: look for other solutions than the one near `points`, and solve to rounding. If not, the error may be
            of the order of the squared distance from `points`, and the minimum found may not be the lowest; channels
            in closed form make no difference.
    """

    points: Any = None
    thorough: Bool[Array, ""] | bool = True


NO_GUESS = Guess()


class ChannelStep(eqx.Module):
    """The channel on n samples (AMP's face).

    Attributes:
        z: (K, n) proximal points z* (or posterior means).
        g: (K, n) g = −∇ℓ(z*) = (z* − ω)/V.
        divergence: (n,) tr ∂g/∂ω.
    """

    z: Float[Array, "K n"]
    g: Float[Array, "K n"]
    divergence: Float[Array, " n"]


class ChannelGradient(NamedTuple):
    """Derivatives of M, one entry a replica of the nodes.

    Attributes:
        d_Sigma, d_m, d_q: ∂M/∂Σ, ∂M/∂m, ∂M/∂q.
        points: the solutions of the samples' problems at the nodes, where those of another call may start.
    """

    d_Sigma: Float[Array, " R"]
    d_m: Float[Array, " R"]
    d_q: Float[Array, " R"]
    points: Any


class ChannelAverage(eqx.Module):
    """Gaussian averages of the channel, one entry a replica of the nodes (state evolution's face).

    Attributes:
        potential: M.
        d_Sigma, d_m, d_q: ∂M/∂Σ, ∂M/∂m, ∂M/∂q by the envelope theorem.
        divergence: E tr ∂g, which equals −2 ∂M/∂q up to the integration error.
        squared_jacobian: E ‖∂g‖²_F, for the replicon.
        train_loss: E ℓ(z*).
        test_error: E Σ_ab [σ̃_β0(z0) − σ̃_β(ω)]².
    """

    potential: Float[Array, " R"]
    d_Sigma: Float[Array, " R"]
    d_m: Float[Array, " R"]
    d_q: Float[Array, " R"]
    divergence: Float[Array, " R"]
    squared_jacobian: Float[Array, " R"]
    train_loss: Float[Array, " R"]
    test_error: Float[Array, " R"]


class AbstractChannel(eqx.Module):
    """Head and loss (or likelihood): what one sample says, with one face for AMP and one for state evolution.

    Only channels that minimise a loss have this second face; it raises TypeError for posterior means, whose averages
    are those of `AbstractPosteriorChannel`.
    """

    @property
    @abc.abstractmethod
    def head(self) -> AbstractHead:
        """What predicts labels from an estimate."""

    @abc.abstractmethod
    def apply(
        self,
        omega: Float[Array, "K n"],
        y: Float[Array, "... n"],
        variance: Scalar,
        guess: Guess = NO_GUESS,
    ) -> ChannelStep:
        """The channel's step on n samples.

        Args:
            omega: centres.
            y: labels, samples last.
            variance: V ≥ 0.
            guess: with the `z` of an earlier step as points.
        """

    def predict(self, z: Float[Array, "K n"], variance: Scalar) -> Float[Array, "... n"]:
        """Labels of fresh samples: those of the scores z of the estimate.

        Args:
            z: (K, n) scores of the estimate.
            variance: V of the estimate, the variance of the target's scores about z; read by posterior means.
        """
        return self.head(z)

    def _no_loss(self) -> TypeError:
        return TypeError(f"channel must minimise a loss, as ERMChannel does, got {type(self).__name__}; see `bayes`")

    def gradient(
        self,
        target: Target,
        Sigma: Scalar,
        m: Scalar,
        q: Scalar,
        nodes: Float[Array, "R P D"],
        guess: Guess = NO_GUESS,
    ) -> ChannelGradient:
        """(∂M/∂Σ, ∂M/∂m, ∂M/∂q) per replica: what the solver iterates, differentiable.

        The points of `guess` are those of an earlier call, or of `unsolved`.
        """
        raise self._no_loss()

    def average(
        self,
        target: Target,
        Sigma: Scalar,
        m: Scalar,
        q: Scalar,
        nodes: Float[Array, "R P D"],
        guess: Guess = NO_GUESS,
    ) -> ChannelAverage:
        """Everything state evolution reports of the channel, per replica; `guess` as in `gradient`."""
        raise self._no_loss()

    def unsolved(self, nodes: Float[Array, "R P D"]) -> Any:
        """In place of `points` before the first call; None for channels that solve nothing."""
        return None

    def nodes(self, target: Target, nodes: int, replicas: int, seed: int = 0) -> np.ndarray:
        """Integration nodes of shape (replicas, points, D), independent between replicas; host side."""
        raise self._no_loss()
