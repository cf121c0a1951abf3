"""The spectrum of the learned matrix at d → ∞: its law, outliers, phases, and the distance of eigenvalues from it."""

from amp_attention.spectrum._distances import distances as distances, positive_part as positive_part
from amp_attention.spectrum._learned import LearnedSpectrum as LearnedSpectrum, learned_spectrum as learned_spectrum
from amp_attention.spectrum._outliers import Outliers as Outliers, detached as detached, detachment as detachment
from amp_attention.spectrum._phases import (
    PHASES as PHASES,
    bleed_out_margin as bleed_out_margin,
    bulk_edge as bulk_edge,
    collapse_margin as collapse_margin,
    phase_index as phase_index,
    phase_name as phase_name,
    support_end as support_end,
)
