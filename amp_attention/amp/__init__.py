"""Approximate message passing on one data set."""

from amp_attention.amp._amp import AMP as AMP, AMPInfo as AMPInfo, AMPState as AMPState
from amp_attention.amp._damping import (
    AbstractDamping as AbstractDamping,
    AutomaticDamping as AutomaticDamping,
    FixedDamping as FixedDamping,
)
from amp_attention.amp._loop import AMPEstimate as AMPEstimate, AMPHistory as AMPHistory, solve_amp as solve_amp
