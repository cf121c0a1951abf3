"""The probability that a symmetric matrix of normal scores has the maxima of its rows in given columns.

Row a has its maximum m_a = h_ac in column c = c_a. This score is in row c as well, so that m_a ≤ m_c: the maxima make
a forest, whose roots are diagonal scores (c_a = a) or scores that are the maxima of both their rows. Maxima are drawn
from the roots down, each truncated at that of its parent, and given them every other score h_ab is at most
min(m_a, m_b) independently. What is left is an average over at most T uniform variables.
"""

import itertools
import math
from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc, ndtri

from amp_attention._typing import Array, Float, Int, Scalar
from amp_attention.numerics.packing import diagonal_weights, positions, upper_triangle


@cache
def kinds_of_columns(tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Choices of columns of non-zero probability, one of each kind up to renumbering: (kinds, T), and how many of it.

    There are T^T choices; of these, those in which maxima would have to grow along a cycle are left out.
    """
    examples: dict[tuple, tuple[int, ...]] = {}
    counts: Counter[tuple] = Counter()
    for columns in itertools.product(range(tokens), repeat=tokens):
        form = _form(columns)
        if form is not None:
            examples.setdefault(form, columns)
            counts[form] += 1
    return np.asarray(list(examples.values())), np.asarray([counts[form] for form in examples])


def _form(columns: tuple[int, ...]) -> tuple | None:
    """What does not depend on the numbering of tokens; None where maxima would have to grow along a cycle."""
    tokens = range(len(columns))
    roots = [a for a in tokens if columns[columns[a]] == a]

    def branch(a: int) -> tuple:
        return tuple(sorted(branch(b) for b in tokens if columns[b] == a and b not in roots))

    reached, last = set(roots), -1
    while len(reached) != last:
        last = len(reached)
        reached |= {a for a in tokens if columns[a] in reached}
    if len(reached) < len(columns):
        return None
    return tuple(sorted(tuple(sorted(branch(a) for a in {root, columns[root]})) for root in roots))


def parents_first(columns: Int[Array, "T n"]) -> tuple[Int[Array, "T n"], Int[Array, "T n"]]:
    """(order, columns) with the tokens renumbered: order[t] becomes t, whose column is below t unless t is a root."""
    tokens = jnp.arange(columns.shape[0])[:, None]
    back = jnp.take_along_axis(columns, columns, axis=0)
    root = (columns == tokens) | ((back == tokens) & (tokens < columns))
    parent = jnp.where(root, tokens, columns)
    depth, ancestor = jnp.zeros_like(columns), jnp.broadcast_to(tokens, columns.shape)
    for _ in range(columns.shape[0]):
        depth = jnp.where(jnp.take_along_axis(root, ancestor, axis=0), depth, depth + 1)
        ancestor = jnp.take_along_axis(parent, ancestor, axis=0)
    order = jnp.argsort(depth, axis=0)
    rank = jnp.argsort(order, axis=0)
    return order, jnp.take_along_axis(rank, jnp.take_along_axis(columns, order, axis=0), axis=0)


def _normal_cdf(x: Array) -> Array:
    """Φ(x); `ndtr` takes three times as long."""
    return erfc(-x / math.sqrt(2)) / 2


def row_maxima_probability(
    omega: Float[Array, "K n"], columns: Int[Array, "T n"], variance: Scalar, uniform: Float[Array, "T N *n"]
) -> tuple[Float[Array, " n"], Float[Array, "K n"]]:
    """Z = P(argmax_b h_ab = c_a for all rows a), h_ab = √(1+δ_ab) z_ab, z ~ N(ω, variance), and ∂Z/∂ω.

    The slope is the average of the distances of the scores from their means, over the variance, which is continuous in
    ω whatever the points; derivatives of the draws would jump where two maxima change places.

    Args:
        omega: (K, n) means of the scores.
        columns: (T, n) the columns c_a.
        variance: of the scores, > 0.
        uniform: N points in (0, 1)^T to average over, the same for all n or others for each.

    Returns:
        Averages over the points: of random points, unbiased estimates.
    """
    T = columns.shape[0]
    tokens, place, (rows, cols) = jnp.arange(T)[:, None], jnp.asarray(positions(T)), upper_triangle(T)
    order, columns = parents_first(columns)
    moved = place[order[rows], order[cols]]  # the score that each renumbered one was
    weights = jnp.asarray(diagonal_weights(T), omega.dtype)[:, None]
    means, widths = weights * jnp.take_along_axis(omega, moved, axis=0), weights * jnp.sqrt(variance)

    largest = place[tokens, columns]  # the score that is the maximum of each row
    child = columns < tokens
    shared = child & (jnp.take_along_axis(columns, columns, axis=0) == tokens)
    of_maxima = jnp.take_along_axis(means, largest, axis=0), widths[largest, 0]
    lanes = jax.tree.map(lambda x: x[:, None], (columns, child, shared, *of_maxima))
    tiny, eps = float(jnp.finfo(omega.dtype).tiny), float(jnp.finfo(omega.dtype).eps)

    def draw(carry, inputs):
        """One maximum, below that of its parent."""
        maxima, probability = carry
        token, (column, child, shared, mean, width), u = inputs
        limit = jnp.where(child, jnp.sum(jnp.where(column[None] == tokens[:, None], maxima, 0), axis=0), mean)
        below = jnp.where(child, _normal_cdf((limit - mean) / width), 1)
        x = ndtri(jnp.clip(u * below, tiny, 1 - eps))
        maxima = maxima.at[token].set(jnp.where(shared, limit, mean + width * x))
        return (maxima, probability * jnp.where(shared, 1, below)), x / width

    def bound(probability, inputs):
        """One of the other scores, at most both its maxima: its expected distance from the mean, over the variance."""
        s, t, mean, width, free = inputs
        x = (jnp.minimum(maxima[s], maxima[t]) - mean) / width
        below = _normal_cdf(x)
        density = jnp.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        floor = math.sqrt(tiny)  # whose square, in derivatives, does not underflow
        distance = jnp.where(free, -density / jnp.maximum(below, floor) / width, 0)
        return probability * jnp.where(free, below, 1), distance

    blank = jnp.zeros_like(uniform[0] + means[:1])
    start = jnp.zeros((T, *blank.shape), blank.dtype), jnp.ones_like(blank)
    (maxima, probability), of_maxima = jax.lax.scan(draw, start, (jnp.arange(T), lanes, uniform))
    free = (columns[rows] != cols[:, None]) & (columns[cols] != rows[:, None])
    others = jnp.asarray(rows), jnp.asarray(cols), means[:, None], widths[:, None], free[:, None]
    probability, of_others = jax.lax.scan(bound, probability, others)

    def average(distances):
        return jnp.mean(probability[None] * distances, axis=1)

    onto = (largest[:, None] == jnp.arange(len(rows))[None, :, None]) & ~shared[:, None]
    slope = average(of_others) + jnp.sum(jnp.where(onto, average(of_maxima)[:, None], 0), axis=0)
    back = jnp.take_along_axis(weights * slope, jnp.argsort(moved, axis=0), axis=0)
    return jnp.mean(probability, axis=0), back
