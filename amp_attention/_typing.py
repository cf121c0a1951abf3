"""Names of array shapes used in public signatures.

The letters are the same everywhere: `n` samples, `T` tokens, `d` embedding dimension, `p` student width,
`K = T(T+1)/2` independent scores of one sample.
"""

from jaxtyping import Array, Bool, Complex, Float, Int, PRNGKeyArray

Scalar = Float[Array, ""]
ScalarLike = Float[Array, ""] | float

__all__ = ["Array", "Bool", "Complex", "Float", "Int", "PRNGKeyArray", "Scalar", "ScalarLike"]
