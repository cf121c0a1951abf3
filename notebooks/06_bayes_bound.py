# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # No estimator beats the posterior mean of $S_0$, AMP reaches it, and the nuclear norm stays above
#
# Whoever knows the law of $S_0$, $\Delta$ and $\beta_0$ can do no better than the posterior mean. At $d\to\infty$ its
# error is $E=\mathrm{mmse}(D)$, where the variance $D$ of the effective noise solves
# $1/D=2\alpha\,\mathbb{E}\sum_{a\le b}g_{ab}^2$, $g$ the posterior mean of the scores of one sample. AMP for it is the
# AMP of training with another channel and another denoiser.

# %%
# ruff: noqa: E402 (the environment is set before JAX is imported)
import os

from amp_attention._cli.environment import prepare

prepare("float64")

import jax.numpy as jnp
import numpy as np
from IPython.display import Image

from amp_attention import plotting
from amp_attention.bayes import bayes_point, bayes_problem, solve_bayes
from amp_attention.channels import HardmaxPosterior, PosteriorAverage
from amp_attention.channels._posterior import bivariate_normal
from amp_attention.experiments import FiniteSettings, TheorySettings, problem_grid, run_instances, tuning_sweep
from amp_attention.heads import HardmaxHead, SoftmaxHead
from amp_attention.plotting import ErrorSeries
from amp_attention.spectral_laws import FreeConvolution, MarchenkoPastur
from amp_attention.targets import Target
from amp_attention.thresholds import bayes_recovery_threshold

# %%
FAST = bool(os.environ.get("AMP_ATTENTION_FAST"))
KAPPA0, NOISE = 0.5, 0.5
LAW = MarchenkoPastur(KAPPA0)
AMP = FiniteSettings(d=30 if FAST else 80, repeats=2 if FAST else 4, test_samples=1_000, tolerance=1e-5)
BIAS = 4 if FAST else 2  # of AMP, times d
ALPHAS = {0.0: () if FAST else (0.05, 0.1, 0.15), NOISE: (0.5,) if FAST else (0.1, 0.2, 0.5)}
CURVE = {0.0: np.linspace(0.03, 0.2, 12 if FAST else 60), NOISE: np.geomspace(0.05, 1.0, 8 if FAST else 30)}
TUNED = (0.4,) if FAST else np.geomspace(0.08, 1.0, 8)


def softmax(tokens=2, noise=0.0):
    return Target(LAW, SoftmaxHead(tokens), noise)


def hardmax(tokens=2):
    return Target(LAW, HardmaxHead(tokens), 0.0)


def curve(target, alphas, channel=None):
    """E of the posterior mean."""
    solutions = [solve_bayes(target, alpha, channel) for alpha in alphas]
    assert all(solution.successful for solution in solutions)
    return np.array([float(solution.value.squared_error) for solution in solutions])


def finite(target, alphas):
    """Effective α, mean E and its standard error of AMP, which is asserted to be where state evolution says.

    Within three standard errors and 2/d: at finite d AMP is some percent above its limit.
    """
    points = [run_instances(bayes_problem(target, alpha), ["amp"], AMP)["amp"].record for alpha in alphas]
    assert all(point["result"] == "successful" for point in points)
    places = [point["n"] / AMP.d**2 for point in points]
    mean = np.array([point["squared_error"] for point in points])
    error = np.array([point["standard_error"]["squared_error"] for point in points])
    assert np.all(np.abs(mean - curve(target, places)) < BIAS / AMP.d + 3 * error)
    return places, mean, error


# %% [markdown]
# ## The bound, AMP, and training at its best regularisation
#
# Without noise the posterior mean is exact from $\alpha_\mathrm{Bayes}=(2\kappa_0-\kappa_0^2)/(T^2+T-2)$ on. With
# noise the nuclear norm at the $\tilde\lambda$ of least squared error, which knows nothing of the law of $S_0$, has
# up to twice the error.

# %%
panels = []
for noise in (0.0, NOISE):
    target = softmax(noise=noise)
    series = [ErrorSeries("posterior mean", CURVE[noise], curve(target, CURVE[noise]))]
    if ALPHAS[noise]:
        series.append(ErrorSeries("AMP for it", *finite(target, ALPHAS[noise])))
    panels.append((rf"$\Delta={noise:g}$", series))
threshold = float(bayes_recovery_threshold(LAW, softmax().head.constraints))

settings = TheorySettings(nodes=512 if FAST else 2048, replicas=4)
grid = problem_grid(TUNED, [0.1], tokens=2, kappa0=KAPPA0, noise=NOISE)
tuned = [point.record for point in tuning_sweep(grid, "squared_error", settings)]
assert all(record["result"] == "successful" for record in tuned)
best = np.array([record["value"] for record in tuned])
bound = curve(softmax(noise=NOISE), TUNED)
assert np.all((best >= bound) & (best < 2 * bound))
print("nuclear norm at its best λ̃ over the posterior mean:", np.array2string(best / bound, precision=3))

panels[1][1].append(ErrorSeries(r"nuclear norm at its best $\tilde\lambda$", TUNED, best))
parameters = {"tokens": 2, "kappa0": KAPPA0, "d": AMP.d, "repeats": AMP.repeats}
figure = plotting.squared_error_curves(panels, parameters, threshold=threshold)
Image(plotting.render(figure, "png"), retina=True)

# %% [markdown]
# ## Only the number of equations counts
#
# A noiseless softmax label of $T$ tokens sets $(T^2+T-2)/2$ linear equations for the scores and says nothing else, so
# that all $T$ share one curve in $\alpha(T^2+T-2)$.

# %%
PER_TOKENS = {T: T * T + T - 2 for T in ((2, 3) if FAST else (2, 3, 4))}
SHOWN = {2: 0.25, 3: 0.4, 4: 0.55}  # of AMP, in α (T² + T − 2)
lines, points = [], []
reference = curve(softmax(), CURVE[0.0])
for tokens, equations in PER_TOKENS.items():
    alphas = CURVE[0.0] * PER_TOKENS[2] / equations
    E = curve(softmax(tokens), alphas)
    np.testing.assert_allclose(E, reference, atol=1e-12)
    lines.append(ErrorSeries(f"$T={tokens}$", alphas * equations, E))
    if not FAST:
        places, mean, error = finite(softmax(tokens), [SHOWN[tokens] / equations])
        points.append(ErrorSeries(f"$T={tokens}$", np.array(places) * equations, mean, error))
figure = plotting.squared_error_curves(
    [("", lines + points)],
    {"kappa0": KAPPA0, "noise": 0.0, "d": AMP.d, "repeats": AMP.repeats},
    xlabel=r"$\alpha\,(T^2+T-2)$",
    threshold=threshold * PER_TOKENS[2],
)
Image(plotting.render(figure, "png"), retina=True)

# %% [markdown]
# ## Hardmax: the published curve has the wrong formula
#
# A hardmax label of two tokens tells the signs of two correlated normal variables, so that $g$ is the derivative of the
# log of a bivariate distribution function. The public scripts of arXiv:2506.01582 have the bivariate *density* in its
# place. With the density one finds the published errors again, to within their noise; the exact derivative gives
# less than half of them at $\alpha=0.5$, decays like $1/\alpha^2$ instead of $1/\alpha$, and is what AMP reaches, below
# the published "optimum".

# %%
PUBLISHED = {0.50541058: 0.486380, 5.04: 0.0868}  # public data of arXiv:2506.01582, κ0 = 0.5


class DensityHardmax(HardmaxPosterior):
    """The formula behind the published curve: E Σ g(z − ω) = V E Σ g² does not hold for this g."""

    def averages(self, q, V):
        x = np.linspace(-8, 8, 401)
        x, y = x[:, None], x[None, :]
        weight = 3 / (4 * 2**0.5 * np.pi) * np.exp(-9 / 16 * (x**2 - 2 / 3 * x * y + y**2)) * (16 / 400) ** 2
        total = jnp.zeros(2)
        for product in (1, -1):
            r, k1, k2 = product / 3, jnp.sqrt(q / V) * x, jnp.sqrt(q / V) * product * y
            Z = jnp.maximum(bivariate_normal(k1, k2, jnp.asarray(r)), 1e-15)
            density = jnp.exp(-(k1**2 - 2 * r * k1 * k2 + k2**2) / (2 * (1 - r**2)))
            g = density / (2 * jnp.pi * jnp.sqrt(1 - r**2)) / Z
            squares = g**2 * (4 + (1 + product) ** 2) / (3 * V)
            total += 2 * jnp.stack([jnp.sum(weight * Z * squares), jnp.sum(weight * Z * jnp.log(Z))])
        return PosteriorAverage(*total[:, None])


alphas = np.geomspace(0.05, 6.0, 6 if FAST else 20)
exact, wrong = curve(hardmax(), alphas), curve(hardmax(), alphas, DensityHardmax(hardmax()))
again = curve(hardmax(), list(PUBLISHED), DensityHardmax(hardmax()))
np.testing.assert_allclose(again, list(PUBLISHED.values()), atol=1.2e-3)
series = [ErrorSeries("exact", alphas, exact)]
if not FAST:
    places, mean, error = finite(hardmax(), (0.1, 0.3, 0.5, 1.0))
    assert mean[places.index(0.5)] + 3 * error[places.index(0.5)] < PUBLISHED[0.50541058]
    series.append(ErrorSeries("AMP, exact", places, mean, error))
slopes = [float(np.log(E[-1] / E[-2]) / np.log(alphas[-1] / alphas[-2])) for E in (exact, wrong)]
assert slopes[0] < -1.8 and -1.1 < slopes[1] < -0.8
print(f"d ln E/d ln α at α = 6: exact {slopes[0]:.2f}, with the density {slopes[1]:.2f}")

series.append(ErrorSeries("density for derivative", alphas, wrong))
series.append(ErrorSeries("published", list(PUBLISHED), list(PUBLISHED.values()), [0.0, 0.0]))
parameters = {"head": "hardmax", "tokens": 2, "kappa0": KAPPA0, "noise": 0.0, "d": AMP.d, "repeats": AMP.repeats}
figure = plotting.squared_error_curves([("", series)], parameters, logarithmic=True)
Image(plotting.render(figure, "png"), retina=True)

# %% [markdown]
# ## The denoiser
#
# The posterior mean of $S_0$ given $S_0+\sqrt{D}\,Z$ keeps the eigenvectors and shrinks the eigenvalues. At large $D$
# it is near the prior mean $\kappa_0$ everywhere; at small $D$ it follows $y$, and presses what is left of the null
# space of $S_0$ to zero.

# %%
curves = []
for D in (0.05, 0.3, 2.0):
    convolution = FreeConvolution(LAW, D**0.5)
    ends = np.asarray(convolution.edges())
    y = np.linspace(ends[0, 0], ends[-1, 1], 400)
    shrunk = np.asarray(convolution.posterior_mean(jnp.asarray(y)))
    assert np.all(np.diff(shrunk) > 0) and np.all(np.diff(shrunk) < 2 * np.diff(y).max())
    point = bayes_point(softmax(), D)
    curves.append((rf"$D={D:g}$, $E={float(point.squared_error):.2g}$", y, shrunk))
figure = plotting.shrinkage_curves(curves, {"kappa0": KAPPA0})
Image(plotting.render(figure, "png"), retina=True)
