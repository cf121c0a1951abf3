"""Spectra of target matrices, and their free convolution with a semicircle."""

from amp_attention.spectral_laws._law import AbstractSpectralLaw
from amp_attention.spectral_laws.finite import FiniteLaw
from amp_attention.spectral_laws.free_convolution import Above, FreeConvolution, J
from amp_attention.spectral_laws.marchenko_pastur import MarchenkoPastur
from amp_attention.spectral_laws.semicircle import Semicircle

__all__ = ["Above", "AbstractSpectralLaw", "FiniteLaw", "FreeConvolution", "J", "MarchenkoPastur", "Semicircle"]
