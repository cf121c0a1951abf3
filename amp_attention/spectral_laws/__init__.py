"""Spectra of target matrices, and their free convolution with a semicircle."""

from ._law import AbstractSpectralLaw
from .finite import FiniteLaw
from .free_convolution import Above, FreeConvolution, J
from .marchenko_pastur import MarchenkoPastur
from .semicircle import Semicircle

__all__ = ["Above", "AbstractSpectralLaw", "FiniteLaw", "FreeConvolution", "J", "MarchenkoPastur", "Semicircle"]
