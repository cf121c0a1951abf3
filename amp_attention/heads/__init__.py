"""Heads: the map from scores to outputs."""

from amp_attention.heads._hardmax import HardmaxHead as HardmaxHead
from amp_attention.heads._head import AbstractHead as AbstractHead
from amp_attention.heads._linear import LinearHead as LinearHead
from amp_attention.heads._softmax import SoftmaxHead as SoftmaxHead
