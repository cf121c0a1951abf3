"""Figures. Nothing below imports this package, and it draws on no screen: figures are returned, or saved as files."""

from amp_attention.plotting._style import (
    COLOURS as COLOURS,
    MARKS as MARKS,
    describe as describe,
    format_number as format_number,
    render as render,
    save as save,
    style as style,
)
from amp_attention.plotting.bayes import (
    ErrorSeries as ErrorSeries,
    bayes_curves as bayes_curves,
    shrinkage_curves as shrinkage_curves,
    squared_error_curves as squared_error_curves,
)
from amp_attention.plotting.eigenvalues import (
    SpectrumPanel as SpectrumPanel,
    eigenvalue_histograms as eigenvalue_histograms,
    spectra_by_phase as spectra_by_phase,
    spectrum_panel as spectrum_panel,
)
from amp_attention.plotting.learning_curves import grid_axes as grid_axes, learning_curves as learning_curves
from amp_attention.plotting.phase_diagram import phase_diagram as phase_diagram
from amp_attention.plotting.sensitivity import sensitivity_curves as sensitivity_curves
from amp_attention.plotting.thresholds import threshold_lines as threshold_lines
from amp_attention.plotting.trajectory import TrajectoryPanel as TrajectoryPanel, amp_trajectories as amp_trajectories
from amp_attention.plotting.tuning import tuning_curves as tuning_curves
