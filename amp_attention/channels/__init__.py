"""Channels: what one sample says, in two faces (AMP's step and state evolution's average)."""

from amp_attention.channels._channel import (
    AbstractChannel as AbstractChannel,
    ChannelAverage as ChannelAverage,
    ChannelGradient as ChannelGradient,
    ChannelStep as ChannelStep,
)
from amp_attention.channels._erm import ERMChannel as ERMChannel
from amp_attention.channels._loss import AbstractLoss as AbstractLoss, LossDerivatives as LossDerivatives
from amp_attention.channels._proximal import damped_newton as damped_newton, proximal_point as proximal_point
from amp_attention.channels._squared import SquaredLoss as SquaredLoss
