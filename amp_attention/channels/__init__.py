"""Channels: what one sample says, in two faces (AMP's step and state evolution's average)."""

from amp_attention.channels._channel import (
    NO_GUESS as NO_GUESS,
    AbstractChannel as AbstractChannel,
    ChannelAverage as ChannelAverage,
    ChannelGradient as ChannelGradient,
    ChannelStep as ChannelStep,
    Guess as Guess,
)
from amp_attention.channels._erm import ERMChannel as ERMChannel
from amp_attention.channels._loss import AbstractLoss as AbstractLoss, LossDerivatives as LossDerivatives
from amp_attention.channels._posterior import (
    AbstractPosteriorChannel as AbstractPosteriorChannel,
    GaussianPosterior as GaussianPosterior,
    HardmaxPosterior as HardmaxPosterior,
    PosteriorAverage as PosteriorAverage,
    SampledHardmaxPosterior as SampledHardmaxPosterior,
    Schedule as Schedule,
)
from amp_attention.channels._proximal import damped_newton as damped_newton, proximal_point as proximal_point
from amp_attention.channels._squared import SquaredLoss as SquaredLoss
