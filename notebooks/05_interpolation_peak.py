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
# # As λ → 0⁺ the interpolation peak of the test error rises ever more slowly, where replica symmetry is not stable
#
# With noisy labels the test error of a weakly regularised student has a maximum in $\alpha$ beyond the interpolation
# threshold. Does it diverge as $\tilde\lambda\to0^+$, as in linear regression? Its height and place are followed down
# to $\tilde\lambda=10^{-6}$, with error bars from independent scrambles of the integration nodes.

# %%
# ruff: noqa: E402 (the environment is set before JAX is imported)
import os

from amp_attention._cli.environment import prepare

prepare("float64")

import numpy as np
from IPython.display import Image
from scipy.optimize import curve_fit

from amp_attention import plotting
from amp_attention.experiments import TheorySettings, peak_sweep
from amp_attention.plotting._style import COLOURS, DOUBLE, LABELS, caption, new_figure, panel_letters
from amp_attention.problem import attention_problem
from amp_attention.thresholds import thresholds

# %%
FAST = bool(os.environ.get("AMP_ATTENTION_FAST"))
MODEL = {"tokens": 2, "kappa0": 0.5, "noise": 0.5, "beta": 1.0}
LAMS = (1e-3, 3e-4) if FAST else (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
SETTINGS = TheorySettings(nodes=4096, replicas=8)
TAU = 0.03  # width of the passage between two proximal minima, in units of the loss

# %% [markdown]
# ## The peak
#
# At small $\tilde\lambda$ the variance $\Sigma$ of the proximal problem is large, and a few per cent of the samples
# have two minima. A sample that changes from one to the other makes the averages over finitely many nodes jump. They
# are taken with the smooth minimum of width $\tau$ (`smoothing`). Where even then no fixed point exists to rounding, it
# is known to a residual well below its standard error, which leaves no derivative to follow: the peak is the maximum of
# a cubic through points at five values of $\alpha$, each continued from the one at the $\tilde\lambda$ before. The
# error of the place is not known (nan) where too few replicas of the nodes have a fixed point of their own.

# %%
problem = attention_problem(0.2, LAMS[0], smoothing=TAU, **MODEL)
records = [point.record for point in peak_sweep(problem, LAMS, SETTINGS)]
print("  lam       alpha            e_max            e''     eta     R    two minima  switching")
for r in records:
    error = r["standard_error"]
    print(
        f"{r['lam']:.0e}  {r['alpha']:.4f} ± {error['alpha']:.4f}  {r['value']:.4f} ± {error['value']:.4f}"
        f"  {r['curvature']:6.0f}  {r['eta']:6.3f}  {r['replicon']:5.2f}  {r['two_minima']:9.4f}  {r['switching']:9.1e}"
    )

# %% [markdown]
# ## Where it goes
#
# The height is fitted by $a + b\,\tilde\lambda^{c}$, three numbers to seven points: an extrapolation, not a bound.
# The increments from one value of $\tilde\lambda$ to the next shrink.

# %%
alpha_interp = float(thresholds(problem.target).interpolation)
lams, heights, places = (np.asarray([r[name] for r in records]) for name in ("lam", "value", "alpha"))
errors = np.asarray([r["standard_error"]["value"] for r in records])


def power(lam, limit, amplitude, exponent):
    return limit - amplitude * lam**exponent


if not FAST:
    fit, covariance = curve_fit(
        power, lams, heights, p0=(0.5, 1.0, 0.2), sigma=errors, absolute_sigma=True, maxfev=20000
    )
    limit, limit_error = fit[0], np.sqrt(covariance[0, 0])
    print(f"height at λ → 0⁺: {limit:.3f} ± {limit_error:.3f}, approached like λ^{fit[2]:.2f}")
    increments = np.diff(heights)
    assert np.all(increments > 0) and np.all(np.diff(increments) < 0)
print(f"place at the smallest λ̃: {places[-1]:.4f}; interpolation threshold {alpha_interp:.4f}")
assert places[-1] < places[0] and np.all(places > alpha_interp)

# %%
with plotting.style():
    figure, axes = new_figure(1, 3, DOUBLE, 2.7)
    top, place, check = axes.flat
    top.errorbar(lams, heights, errors, fmt="o", markerfacecolor="white", color=COLOURS[0])
    if not FAST:
        fine = np.geomspace(lams.min() / 30, lams.max(), 200)
        top.plot(fine, power(fine, *fit), color=COLOURS[0], linewidth=1)
        top.axhline(limit, color="0.6", linewidth=0.8, linestyle="--")
    top.set_ylabel(r"height of the peak, $\max_\alpha e$")
    place_errors = np.asarray([r["standard_error"]["alpha"] for r in records])
    place.errorbar(lams, places, place_errors, fmt="o", markerfacecolor="white", color=COLOURS[1])
    place.axhline(alpha_interp, color="0.6", linewidth=0.8, linestyle="--")
    place.text(lams.max(), alpha_interp, r"$\alpha_\mathrm{interp}$", ha="right", va="bottom", fontsize=8)
    place.set_ylabel(r"place of the peak, $\alpha$")
    check.plot(lams, [r["replicon"] for r in records], "s-", color=COLOURS[2], label="replicon $R$, smooth part")
    check.plot(
        lams, [10 * r["two_minima"] for r in records], "^-", color=COLOURS[3], label="10 × share with two minima"
    )
    check.axhline(1, color="0.6", linewidth=0.8, linestyle="--")
    check.set_ylim(bottom=0)
    check.legend(loc="center", bbox_to_anchor=(0.5, 0.62), fontsize=7)
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_xlabel(LABELS["lam"])
    panel_letters(axes.flat)
    caption(figure, plotting.describe(MODEL))
Image(plotting.render(figure, "png"))

# %% [markdown]
# ## What the numbers say
#
# The replica-symmetric peak rises ever more slowly, and the fit tends to a finite height, at an $\alpha$ that moves
# towards the interpolation threshold from above. The test error is bounded in any case (the labels are probabilities);
# that the student does not run away shows in $\eta$, which stays of order one at the peak.
#
# This is the replica-symmetric answer, and it is not exact there. The smooth part of the replicon is about one, as a
# mean that a single node can dominate, and a share of the samples has two proximal minima with a positive density of
# ties: two replicas of AMP then part like the square root of their distance, so that replica symmetry is unstable
# whatever the smooth part says. The numbers bound neither the true height nor its limit; they show no sign of a
# divergence.

# %%
assert all(r["switching"] > 0 for r in records)
assert max(abs(r["eta"] - 1) for r in records) < 1
