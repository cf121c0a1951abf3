"""State evolution: what training finds at d → ∞."""

from amp_attention.state_evolution._equations import (
    OrderParameters as OrderParameters,
    channel_equations as channel_equations,
    free_entropy as free_entropy,
    prior_equations as prior_equations,
    state_evolution_nodes as state_evolution_nodes,
    update as update,
)
from amp_attention.state_evolution._fixed_point import FixedPoint as FixedPoint
from amp_attention.state_evolution._interpolation import (
    interpolates as interpolates,
    interpolation_threshold as interpolation_threshold,
    solve_interpolator as solve_interpolator,
)
from amp_attention.state_evolution._newton import SafeguardedNewton as SafeguardedNewton
from amp_attention.state_evolution._solver import (
    informed_start as informed_start,
    solve_lowest as solve_lowest,
    solve_state_evolution as solve_state_evolution,
    trajectory as trajectory,
    uninformed_start as uninformed_start,
)
