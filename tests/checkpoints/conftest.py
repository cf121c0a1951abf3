"""How results are compared here, and a run that stops in the middle."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest


def _bits(leaf):
    array = np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
    return leaf.dtype, leaf.shape, array.tobytes()


@pytest.fixture(scope="session")
def same_bits():
    """Whether two pytrees have the same structure and the same bits."""

    def compare(a, b):
        a, b = ([leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in jax.tree.leaves(t)] for t in (a, b))
        return list(map(_bits, a)) == list(map(_bits, b))

    return compare


class Interrupted(Exception):
    """In place of SIGKILL."""


@pytest.fixture(scope="session")
def bursts():
    """A context that counts the bursts of an engine's module; of those beyond `most` the first never returns."""

    @contextlib.contextmanager
    def counting(module, most=None):
        advance, done = module._advance, []

        def counted(*arguments):
            if len(done) == most:
                raise Interrupted
            done.append(1)
            return advance(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_advance", counted)
            with contextlib.nullcontext() if most is None else pytest.raises(Interrupted):
                yield done

    return counting
