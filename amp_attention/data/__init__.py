"""Tokens, labels, matrix-free scores and their adjoint."""

from amp_attention.data._chunks import CHUNK as CHUNK, Chunk as Chunk, fold_chunks as fold_chunks
from amp_attention.data._data import Data as Data, shard as shard
from amp_attention.data._files import load_npy as load_npy, load_npz as load_npz
from amp_attention.data._generate import (
    drawn_labels as drawn_labels,
    generate_data as generate_data,
    sample_size as sample_size,
)
from amp_attention.data._memory import (
    available_memory as available_memory,
    check_memory as check_memory,
    estimated_memory as estimated_memory,
)
from amp_attention.data._samples import Samples as Samples, sum_over_samples as sum_over_samples
from amp_attention.data._sensing import (
    AdjointSum as AdjointSum,
    adjoint as adjoint,
    adjoint_sum as adjoint_sum,
    scores as scores,
)
from amp_attention.data._tokens import (
    AbstractTokens as AbstractTokens,
    DrawnTokens as DrawnTokens,
    MappedTokens as MappedTokens,
)
from amp_attention.data._whiteness import Whiteness as Whiteness, whiteness as whiteness
from amp_attention.numerics.devices import device_mesh as device_mesh, replicated as replicated
