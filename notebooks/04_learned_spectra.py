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
# # Eigenvalues and eigenvectors of the learned matrix follow their law, in every phase and the closer the larger d
#
# At the fixed point the learned matrix is distributed like $\eta\,\mathrm{ReLU}(S_0+\delta Z-\epsilon)$, $Z$ from the
# GOE. Its spectrum has an atom at zero, a bulk where $\epsilon$ lies inside the bulk of $S_0+\delta Z$, and isolated
# eigenvalues where directions of $S_0$ have detached from it. The target here has 97 zero eigenvalues and three
# spikes in 100 dimensions.

# %%
# ruff: noqa: E402 (the environment is set before JAX is imported)
import os

from amp_attention._cli.environment import prepare

prepare("float64")

import jax.numpy as jnp
import numpy as np
import pandas as pd
from IPython.display import Image
from matplotlib.figure import Figure

from amp_attention import plotting
from amp_attention.experiments import (
    FiniteSettings,
    TheorySettings,
    draw_instance,
    problem_grid,
    run_instances,
    spectrum_sweep,
)
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.spectrum import PHASES, distances, positive_part

# %%
FAST = bool(os.environ.get("AMP_ATTENTION_FAST"))
MODEL = {"tokens": 2, "noise": 0.5, "beta": 1.0}
SPIKES = (1.0, 1.5, 2.0)
LIST = FiniteLaw(jnp.asarray([0.0] * 97 + list(SPIKES)))
POINTS = {  # (α, λ̃), one in each phase
    "rank_collapse": (0.5, 2.0),
    "bleed_out": (0.02, 0.02),
    "outliers_only": (0.5, 0.6),
    "outliers_and_bulk": (0.5, 0.1),
}
THEORY = TheorySettings(nodes=512 if FAST else 2048, replicas=4)
AMP = FiniteSettings(d=100, repeats=1 if FAST else 4, test_samples=2_000)
OVERLAP_ALPHAS, OVERLAP_LAM = (0.5,) if FAST else (0.2, 0.3, 0.5, 0.7, 1.0), 0.1
KAPPA0 = 0.5  # of the Marchenko–Pastur target whose spectrum is compared at several d
BULK_POINT = (0.3, 0.05)
REPEATS = {25: 2, 50: 1} if FAST else {50: 8, 100: 4, 200: 1}  # instances by d

# %% [markdown]
# ## One point in each phase

# %%
phases = {}
for phase, (alpha, lam) in POINTS.items():
    (phases[phase],) = spectrum_sweep(problem_grid([alpha], [lam], law=LIST, **MODEL), settings=THEORY, finite=AMP)
    assert phases[phase].record["phase"] == phase
    assert phases[phase].record["finite_d"]["result"] == "successful"
assert set(phases) == set(PHASES)

panels = [
    plotting.spectrum_panel(
        rf"$\alpha={POINTS[name][0]:g}$, $\tilde\lambda={POINTS[name][1]:g}$", p.spectrum, p.eigenvalues
    )
    for name, p in phases.items()
]
figure = plotting.spectra_by_phase(panels, MODEL | {"d": AMP.d, "repeats": AMP.repeats})
figure.axes[2].set_xlim(right=1.65 * phases["outliers_only"].spectrum.bands()[-1, 1])  # room for the weights
Image(plotting.render(figure, "png"), retina=True)

# %% [markdown]
# Above rank collapse AMP returns $S=0$ exactly. Where only outliers are left, it has exactly as many positive
# eigenvalues as there are outliers.

# %%
ranks = {name: positive_part(point.eigenvalues).size / AMP.repeats for name, point in phases.items()}
assert np.all(phases["rank_collapse"].eigenvalues == 0) and phases["rank_collapse"].record["atom"] == 1
assert ranks["outliers_only"] == len(phases["outliers_only"].record["outliers"]) == len(SPIKES)
assert not phases["bleed_out"].record["outliers"] and ranks["bleed_out"] > 0
for name, point in phases.items():
    expected = AMP.d * (1 - point.record["atom"])
    assert abs(ranks[name] - expected) < 3
    print(f"{name:18} rank of S at d = {AMP.d}: theory {expected:5.2f}, AMP {ranks[name]:5.2f}")

# %% [markdown]
# ## Eigenvectors
#
# The overlap of an outlier's eigenvector with its direction in $S_0$ is $\sqrt{1-\delta^2\int
# \mathrm{bulk}(dx)/(s-x)^2}$, here $\sqrt{1-\delta^2/s^2}$ since the bulk of $S_0$ is an atom at zero. It is compared
# with $|\cos|$ between eigenvectors of AMP's $S$ and of $S_0$, and agrees up to four standard errors and $3/d$.


# %%
def overlaps(S, S0):
    """|cos| between the eigenvectors of the largest eigenvalues of S and of S0, one for each spike."""
    learned, target = (np.linalg.eigh(np.asarray(matrix))[1][:, -len(SPIKES) :] for matrix in (S, S0))
    return np.abs(np.sum(learned * target, axis=0))[::-1]


settings = FiniteSettings(d=100, repeats=2 if FAST else 6, test_samples=2_000, keep_matrices=True)
theory, mean, error = [], [], []
for problem in problem_grid(OVERLAP_ALPHAS, [OVERLAP_LAM], law=LIST, **MODEL):
    (point,) = spectrum_sweep([problem], settings=THEORY)
    theory.append(point.spectrum.outliers().overlap)
    runs = run_instances(problem, ["amp"], settings)["amp"].runs
    targets = [draw_instance(problem, settings.d, settings.seed, run.record["repeat"]).S0 for run in runs]
    found = np.asarray([overlaps(run.S, S0) for run, S0 in zip(runs, targets, strict=True)])
    mean.append(found.mean(axis=0))
    error.append(found.std(axis=0, ddof=1) / len(runs) ** 0.5)
theory, mean, error = (np.asarray(values) for values in (theory, mean, error))
assert np.all(np.abs(mean - theory) < 4 * error + 3 / settings.d)
print(f"largest gap between AMP's mean overlap and theory: {np.abs(mean - theory).max():.3f}")

with plotting.style():
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    axis = figure.subplots()
    for k, spike in enumerate(sorted(SPIKES, reverse=True)):
        colour = plotting.COLOURS[k]
        axis.plot(OVERLAP_ALPHAS, theory[:, k], color=colour, label=f"$s={spike:g}$")
        look = {"fmt": "o", "color": colour, "markerfacecolor": "white", "elinewidth": 0.8}
        axis.errorbar(OVERLAP_ALPHAS, mean[:, k], yerr=error[:, k], **look)
    axis.set(xlabel=r"sample ratio $\alpha$", ylabel="overlap with the direction in $S_0$", ylim=(None, 1))
    figure.legend(loc="outside lower center", ncols=3, title="lines: theory; points: AMP, mean ± standard error")
Image(plotting.render(figure, "png"), retina=True)

# %% [markdown]
# ## Distance from the law against d
#
# For a Marchenko–Pastur target the Wasserstein and the Kolmogorov–Smirnov distance between the eigenvalues of AMP's
# $S$ and their law at $d\to\infty$, both with the mass at zero, shrink with $d$.

# %%
(bulk_problem,) = problem_grid([BULK_POINT[0]], [BULK_POINT[1]], kappa0=KAPPA0, **MODEL)
(law,) = (point.spectrum for point in spectrum_sweep([bulk_problem], settings=THEORY))
eigenvalues, table = {}, {}
for d, repeats in REPEATS.items():
    runs = run_instances(bulk_problem, ["amp"], FiniteSettings(d=d, repeats=repeats, test_samples=2_000))["amp"].runs
    assert all(run.record["result"] == "successful" for run in runs)
    eigenvalues[d] = np.concatenate([run.eigenvalues for run in runs])
    table[d] = pd.DataFrame([distances(run.eigenvalues, law) for run in runs]).mean()
table = pd.DataFrame(table).T.rename_axis("d")
assert np.all(np.diff(table, axis=0) < 0)
print("mean over instances of the distance of one instance")
print(table.to_string(float_format="{:.4f}".format))

# %% [markdown]
# The histograms are of the eigenvalues of all instances of one $d$.

# %%
panels = [plotting.spectrum_panel(f"$d={d}$", law, eigenvalues[d]) for d in REPEATS]
parameters = MODEL | {"kappa0": KAPPA0, "alpha": BULK_POINT[0], "lam": BULK_POINT[1]}
figure = plotting.eigenvalue_histograms(panels, parameters)
Image(plotting.render(figure, "png"), retina=True)
