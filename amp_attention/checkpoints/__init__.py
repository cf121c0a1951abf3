"""Checkpoints: what a run has computed so far in a file, and how another process goes on from it."""

from amp_attention.checkpoints._files import (
    CheckpointError as CheckpointError,
    CheckpointWriteError as CheckpointWriteError,
    read_checkpoint as read_checkpoint,
    write_checkpoint as write_checkpoint,
)
from amp_attention.checkpoints._fingerprints import (
    digest as digest,
    file_digest as file_digest,
    run_fingerprint as run_fingerprint,
)
from amp_attention.checkpoints._processes import (
    agreed as agreed,
    by_first_process as by_first_process,
    same_everywhere as same_everywhere,
)
from amp_attention.checkpoints._runs import (
    Checkpoint as Checkpoint,
    read_to_resume as read_to_resume,
    refuse_traced as refuse_traced,
    run_in_bursts as run_in_bursts,
)
from amp_attention.checkpoints._trees import (
    document_from_bytes as document_from_bytes,
    document_to_bytes as document_to_bytes,
    tree_from_bytes as tree_from_bytes,
    tree_to_bytes as tree_to_bytes,
)
