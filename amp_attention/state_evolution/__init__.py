"""State evolution: what training finds at d → ∞."""

from amp_attention.state_evolution._batch import solve_each as solve_each
from amp_attention.state_evolution._equations import (
    Nodes as Nodes,
    OrderParameters as OrderParameters,
    channel_equations as channel_equations,
    free_entropy as free_entropy,
    prior_equations as prior_equations,
    state_evolution_nodes as state_evolution_nodes,
    update as update,
)
from amp_attention.state_evolution._fixed_point import FixedPoint as FixedPoint
from amp_attention.state_evolution._interpolation import solve_interpolator as solve_interpolator
from amp_attention.state_evolution._newton import SafeguardedNewton as SafeguardedNewton
from amp_attention.state_evolution._solver import (
    implicit_fixed_point as implicit_fixed_point,
    informed_start as informed_start,
    solve_lowest as solve_lowest,
    solve_state_evolution as solve_state_evolution,
    solves as solves,
    trajectory as trajectory,
    uninformed_start as uninformed_start,
)
