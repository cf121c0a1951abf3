"""A problem: target, channel, denoiser and the sample ratio."""

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Float, ScalarLike
from amp_attention.channels import AbstractChannel, ERMChannel, SquaredLoss
from amp_attention.denoisers import AbstractDenoiser, NuclearNorm
from amp_attention.heads import AbstractHead, LinearHead, SoftmaxHead
from amp_attention.numerics.validation import floating_type, instance_of, positive, whole_number
from amp_attention.spectral_laws import AbstractSpectralLaw, MarchenkoPastur
from amp_attention.targets import Target


class AttentionProblem(eqx.Module):
    """One tied head trained on labels of a target.

    Args:
        target: what labels the data.
        channel: what one sample says.
        denoiser: penalty or prior on S.
        alpha: α = n/d² > 0.

    Raises:
        ValueError: for another kind of part, heads of different numbers of tokens, or α out of range.
    """

    target: Target
    channel: AbstractChannel
    denoiser: AbstractDenoiser
    alpha: Float[Array, ""]

    def __init__(self, target: Target, channel: AbstractChannel, denoiser: AbstractDenoiser, alpha: ScalarLike):
        instance_of("target", target, Target, "a Target")
        instance_of("channel", channel, AbstractChannel, "a channel, such as ERMChannel")
        instance_of("denoiser", denoiser, AbstractDenoiser, "a denoiser, such as NuclearNorm")
        if isinstance(channel, ERMChannel) and channel.loss.head.tokens != target.head.tokens:
            raise ValueError(
                f"channel must have a head of the T = {target.head.tokens} tokens of the target, "
                f"got {channel.loss.head.tokens}"
            )
        self.target, self.channel, self.denoiser = target, channel, denoiser
        self.alpha = positive("alpha", alpha)

    @property
    def tokens(self) -> int:
        """T."""
        return self.target.head.tokens


def attention_head(tokens: int, beta: ScalarLike) -> AbstractHead:
    """The softmax head of T ≥ 2 tokens at inverse temperature β; the linear head for T = 1."""
    return LinearHead() if tokens == 1 else SoftmaxHead(tokens, beta)


def attention_problem(
    alpha: ScalarLike = 0.5,
    lam: ScalarLike = 0.05,
    *,
    tokens: int = 2,
    kappa0: ScalarLike = 0.5,
    law: AbstractSpectralLaw | None = None,
    noise: ScalarLike = 0.5,
    beta: ScalarLike = 1.0,
    beta0: ScalarLike | None = None,
    smoothing: ScalarLike | None = None,
    dtype=None,
) -> AttentionProblem:
    """The standard problem: squared loss, nuclear norm, Marchenko–Pastur target.

    Args:
        alpha: α = n/d² > 0.
        lam: λ̃ = √κ λ ≥ 0.
        tokens: T ≥ 1; T = 1 is the linear head.
        kappa0: teacher width p0/d > 0 of the Marchenko–Pastur law; not read when `law` is given.
        law: any other spectral law of S0.
        noise: Δ ≥ 0, a variance.
        beta: inverse temperature of the student, > 0.
        beta0: of the target; that of the student by default.
        smoothing: of `ERMChannel`, for small λ̃ near interpolation.
        dtype: cast all numbers to it, float32 or float64; by default JAX's default float.

    Raises:
        ValueError: naming the argument that is out of range.
    """
    tokens = whole_number("tokens", tokens, 1)
    law = MarchenkoPastur(kappa0) if law is None else law
    target = Target(law, attention_head(tokens, beta if beta0 is None else beta0), noise)
    channel = ERMChannel(SquaredLoss(attention_head(tokens, beta)), smoothing=smoothing)
    problem = AttentionProblem(target, channel, NuclearNorm(lam), alpha)
    return cast(problem, jnp.result_type(float) if dtype is None else floating_type("dtype", dtype))


def cast(tree, dtype):
    """The same pytree with every floating-point array in `dtype`."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)
