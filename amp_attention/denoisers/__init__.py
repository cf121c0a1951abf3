"""Denoisers: penalties and priors on S, in two faces (AMP's spectral map and state evolution's integrals)."""

from amp_attention.denoisers._denoiser import (
    AbstractDenoiser as AbstractDenoiser,
    DenoiserAverage as DenoiserAverage,
    DenoiserStep as DenoiserStep,
)
from amp_attention.denoisers._nuclear import NuclearNorm as NuclearNorm
from amp_attention.denoisers._posterior_mean import PosteriorMean as PosteriorMean
from amp_attention.denoisers._spectral_map import (
    soft_threshold_divided_differences as soft_threshold_divided_differences,
    soft_threshold_spectrum as soft_threshold_spectrum,
)
