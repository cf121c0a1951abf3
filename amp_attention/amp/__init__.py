"""Approximate message passing on one data set."""

from amp_attention.amp._amp import AMP as AMP, AMPInfo as AMPInfo, AMPState as AMPState
from amp_attention.amp._damping import (
    AbstractDamping as AbstractDamping,
    AutomaticDamping as AutomaticDamping,
    FixedDamping as FixedDamping,
)
from amp_attention.amp._estimate import AMPEstimate as AMPEstimate, AMPHistory as AMPHistory
from amp_attention.amp._implicit import (
    differentiable_estimate as differentiable_estimate,
    objective_gradient as objective_gradient,
)
from amp_attention.amp._loop import solve_amp as solve_amp
