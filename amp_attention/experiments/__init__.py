"""Sweeps, comparisons with error bars, and result files."""

from amp_attention.experiments._bayes import (
    BayesSweep as BayesSweep,
    BayesSweepPoint as BayesSweepPoint,
    bayes_sweep as bayes_sweep,
)
from amp_attention.experiments._compare import ComparisonPoint as ComparisonPoint, compare as compare
from amp_attention.experiments._files import (
    ForeignFileError as ForeignFileError,
    ResultFolder as ResultFolder,
    command_line as command_line,
    plain as plain,
    to_csv as to_csv,
    to_json as to_json,
    to_netcdf as to_netcdf,
    versions as versions,
)
from amp_attention.experiments._finite import (
    FiniteSettings as FiniteSettings,
    run_engine as run_engine,
    run_instances as run_instances,
)
from amp_attention.experiments._grid import problem_at as problem_at, problem_grid as problem_grid
from amp_attention.experiments._inputs import (
    check_law_memory as check_law_memory,
    check_node_memory as check_node_memory,
    kept_second_moment as kept_second_moment,
    read_eigenvalues as read_eigenvalues,
)
from amp_attention.experiments._instances import (
    Instance as Instance,
    draw_instance as draw_instance,
    given_instance as given_instance,
)
from amp_attention.experiments._peak import PeakPoint as PeakPoint, peak_sweep as peak_sweep
from amp_attention.experiments._phases import PhaseDiagram as PhaseDiagram, PhasePoint as PhasePoint
from amp_attention.experiments._predictions import (
    bound_curve as bound_curve,
    is_logarithmic as is_logarithmic,
    predicted_trajectory as predicted_trajectory,
    refine as refine,
    theory_curve as theory_curve,
)
from amp_attention.experiments._records import (
    LostProcessError as LostProcessError,
    refuse_lost_process as refuse_lost_process,
)
from amp_attention.experiments._runs import FinitePoint as FinitePoint, FiniteRun as FiniteRun
from amp_attention.experiments._sensitivity import (
    SensitivityPoint as SensitivityPoint,
    sensitivity_sweep as sensitivity_sweep,
)
from amp_attention.experiments._spectra import SpectrumPoint as SpectrumPoint, spectrum_sweep as spectrum_sweep
from amp_attention.experiments._store import NOT_STORED as NOT_STORED, Steps as Steps, SweepStore as SweepStore
from amp_attention.experiments._tables import (
    columns as columns,
    dataset as dataset,
    point_rows as point_rows,
    run_rows as run_rows,
    series_rows as series_rows,
)
from amp_attention.experiments._theory import (
    TheoryPoint as TheoryPoint,
    TheorySettings as TheorySettings,
    TheorySweep as TheorySweep,
    state_evolution_sweep as state_evolution_sweep,
)
from amp_attention.experiments._thresholds import (
    ThresholdPoint as ThresholdPoint,
    threshold_sweep as threshold_sweep,
)
from amp_attention.experiments._timing import Timing as Timing, timed as timed
from amp_attention.experiments._tuning import TuningPoint as TuningPoint, tuning_sweep as tuning_sweep
