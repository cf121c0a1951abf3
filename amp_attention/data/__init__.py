"""Tokens, labels, matrix-free scores and their adjoint."""

from amp_attention.data._chunks import CHUNK as CHUNK, Chunk as Chunk, fold_chunks as fold_chunks
from amp_attention.data._data import (
    Data as Data,
    Whiteness as Whiteness,
    load_npz as load_npz,
    whiteness as whiteness,
)
from amp_attention.data._generate import (
    generate_data as generate_data,
    generate_tokens as generate_tokens,
    sample_size as sample_size,
)
from amp_attention.data._memory import (
    available_memory as available_memory,
    check_memory as check_memory,
    estimated_memory as estimated_memory,
)
from amp_attention.data._sensing import adjoint as adjoint, scores as scores
