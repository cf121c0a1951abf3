"""Scrambled Sobol points turned into standard normal vectors: the nodes of every Gaussian average."""

import numpy as np
from scipy.stats import norm, qmc


def gaussian_nodes(dimension: int, nodes: int, replicas: int, seed: int = 0) -> np.ndarray:
    """Independent scrambled Sobol sets, mapped to N(0, I).

    The mean over all nodes is the estimate; the scatter of the means of the replicas, each an independent scramble, is
    its error bar. Host side (SciPy): call it once, outside `jit`.

    Args:
        dimension: number of Gaussian variables, ≥ 1.
        nodes: total number of points wanted; each replica is rounded up to a power of two.
        replicas: number of independent scrambles, ≥ 1.
        seed: seed of the scrambles.

    Returns:
        Array of shape (replicas, points, dimension).
    """
    exponent = max(int(np.ceil(np.log2(nodes / replicas))), 0)
    seeds = np.random.SeedSequence(seed).spawn(replicas)
    sets = [qmc.Sobol(dimension, rng=np.random.default_rng(s)).random_base2(exponent) for s in seeds]
    tiny = np.finfo(float).tiny  # a scrambled point may be exactly 0
    return norm.ppf(np.maximum(np.stack(sets), tiny))
