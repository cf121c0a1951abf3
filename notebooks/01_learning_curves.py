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
# # With the best regularisation the test error falls monotonically in α; with λ → 0⁺ it peaks near interpolation
#
# A tied softmax head with $T=2$ tokens learns a Marchenko–Pastur target of width $\kappa_0$ from labels whose scores
# carry noise of variance $\Delta$. State evolution gives the test error $e(\alpha,\tilde\lambda)$ at $d\to\infty$;
# AMP solves instances at finite $d$. The optimum $\tilde\lambda^*(\alpha)$ is a root of
# $\mathrm de/\mathrm d\tilde\lambda$, found by Newton's method on the implicit derivative of the fixed point.

# %%
# ruff: noqa: E402 (the environment is set before JAX is imported)
import os
from dataclasses import replace
from operator import itemgetter

from amp_attention._cli.environment import prepare

prepare("float64")

import numpy as np
from IPython.display import Image

from amp_attention import plotting
from amp_attention.experiments import (
    FiniteSettings,
    TheorySettings,
    problem_at,
    problem_grid,
    run_instances,
    state_evolution_sweep,
    tuning_sweep,
)
from amp_attention.state_evolution import state_evolution_nodes
from amp_attention.thresholds import thresholds
from amp_attention.tuning import optimise_each

# %%
FAST = bool(os.environ.get("AMP_ATTENTION_FAST"))
MODEL = {"tokens": 2, "kappa0": 0.5, "noise": 0.5, "beta": 1.0}
ALPHAS = np.geomspace(0.06, 2.4, 4 if FAST else 25)
LAMS = (0.01, 0.05, 0.2)
THEORY = TheorySettings(nodes=512 if FAST else 2048, replicas=4)
AMP_ALPHAS = (0.3,) if FAST else (0.12, 0.24, 0.48, 0.96)
AMP = FiniteSettings(d=30 if FAST else 60, repeats=2 if FAST else 3, test_samples=20_000)
TUNED_ALPHAS = (0.2, 0.8) if FAST else (0.1, 0.2, 0.4, 0.8, 1.6)
GRID = np.geomspace(0.01, 1.0, 7 if FAST else 25)  # of λ̃, the brute-force search

# %% [markdown]
# ## Fixed λ̃, and the branch λ → 0⁺
#
# Below $\alpha_\mathrm{interp}$ the limit $\lambda\to0^+$ fits every label, and its training error is zero; above it
# the training error is positive. The test error falls, rises again towards $\alpha_\mathrm{interp}$ and falls far
# beyond it. Between the threshold and about twice of it these nodes do not resolve the averages at
# $\tilde\lambda=0$; what does not converge there is left out.

# %%
alpha_interp = float(thresholds(problem_grid([1.0], [0.0], **MODEL)[0].target).interpolation)
beside = alpha_interp * np.asarray([0.9, 0.95, 0.98, 0.995])
away = ALPHAS[(0.9 * alpha_interp > ALPHAS) | (1.5 * alpha_interp < ALPHAS)]
ridgeless_alphas = sorted([*away, *beside])
ridgeless = replace(THEORY, max_iterations=150)
branch = [p.record for p in state_evolution_sweep(problem_grid(ridgeless_alphas, [0.0], **MODEL), ridgeless)]
unresolved = [record["alpha"] for record in branch if record["result"] != "successful"]
assert all(alpha_interp < alpha < 2.2 * alpha_interp for alpha in unresolved)
curves = {0.0: [record for record in branch if record["result"] == "successful"]}
for lam in LAMS:
    curves[lam] = [p.record for p in state_evolution_sweep(problem_grid(ALPHAS, [lam], **MODEL), THEORY)]

assert all(record["result"] == "successful" and record["stable"] for lam in LAMS for record in curves[lam])
for record in curves[0.0]:
    assert (abs(record["train_error"]) < 1e-12) == (record["alpha"] < alpha_interp)
below = [record for record in curves[0.0] if record["alpha"] < alpha_interp]
above = [record for record in curves[0.0] if record["alpha"] > alpha_interp]
dip, peak = min(below, key=itemgetter("test_error")), max(curves[0.0], key=itemgetter("test_error"))
assert dip["alpha"] < 0.94 * alpha_interp and peak["alpha"] in (below[-1]["alpha"], above[0]["alpha"])
print(f"α_interp = {alpha_interp:.4f}")
print(f"λ → 0⁺: smallest test error below it {dip['test_error']:.4f} at α = {dip['alpha']:.4f}")
print(f"λ → 0⁺: largest test error {peak['test_error']:.4f} at α = {peak['alpha']:.4f}")

# %% [markdown]
# ## The optimum
#
# Each search starts from the optimum before it. At each the gradient vanishes to $10^{-8}$, the curvature is
# positive, and none of the curves above is lower.

# %%
problems = problem_grid(ALPHAS, [0.1], **MODEL)
nodes = state_evolution_nodes(problems[0], THEORY.nodes, THEORY.replicas, THEORY.seed)
optima = list(optimise_each(problems, nodes))
assert all(optimum.successful and optimum.bound is None for optimum in optima)
assert max(abs(optimum.gradient) for optimum in optima) < 1e-8
assert min(optimum.curvature for optimum in optima) > 0
best = np.asarray([optimum.value for optimum in optima])
assert np.all(np.diff(best) < 0)
for lam in LAMS:
    assert np.all(best <= [record["test_error"] for record in curves[lam]])
print(f"largest |de/dλ̃| at the optima: {max(abs(optimum.gradient) for optimum in optima):.1e}")
print(f"fixed points solved per optimum: {np.mean([optimum.solves for optimum in optima]):.1f}")

# %% [markdown]
# ## AMP
#
# The points are means over instances with their standard errors. At finite $d$ they lie off the theory by
# $O(1/d)$.

# %%
measured = {}
for problem in problem_grid(AMP_ALPHAS, LAMS, **MODEL):
    key = float(problem.alpha), float(problem.denoiser.lam)
    measured[key] = run_instances(problem, ["amp"], AMP)["amp"].record
    assert measured[key]["result"] == "successful"

points = [{"alpha": r["alpha"], "lam": lam, "state_evolution": r} for lam in LAMS for r in curves[lam]]
points += [{"alpha": alpha, "lam": lam, "amp": record} for (alpha, lam), record in measured.items()]
parameters = MODEL | {"d": AMP.d, "repeats": AMP.repeats}
figure = plotting.learning_curves(points, parameters, panels=("test_error", "train_error"))
with plotting.style():
    optimum = {"test_error": best, "train_error": [float(o.solution.value.train_error) for o in optima]}
    for axis, (name, values) in zip(figure.axes, optimum.items(), strict=True):
        axis.axvline(alpha_interp, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        axis.plot(ALPHAS, values, color="black", linestyle="--")
        for side in (below, above):
            axis.plot([r["alpha"] for r in side], [r[name] for r in side], color="0.5", zorder=1)
    figure.axes[0].set_ylim(0, 1.05 * max(peak["test_error"], curves[LAMS[-1]][0]["test_error"]))
    figure.axes[0].text(0.31, 0.36, r"$\tilde\lambda\to 0^+$", color="0.4")
    figure.axes[0].text(0.072, 0.22, r"$\tilde\lambda^*(\alpha)$")
    figure.axes[0].text(0.157, 0.02, r"$\alpha_\mathrm{interp}$", color="0.4")
Image(plotting.render(figure, "png"), retina=True)

# %% [markdown]
# Coloured lines are state evolution at fixed $\tilde\lambda$; the dashed line is the optimum, the lower envelope of
# all of them. AMP's test error is that of the theory at $\alpha=n/d^2$ up to four standard errors and a relative
# $5/d$.

# %%
deviation = {}
for problem in problem_grid(AMP_ALPHAS, LAMS, **MODEL):
    key = float(problem.alpha), float(problem.denoiser.lam)
    found, effective = measured[key], problem_at(problem, alpha=measured[key]["n"] / AMP.d**2)
    (predicted,) = (point.record["test_error"] for point in state_evolution_sweep([effective], THEORY))
    deviation[key] = found["test_error"] / predicted - 1
    assert abs(deviation[key]) < 4 * found["standard_error"]["test_error"] / predicted + 5 / AMP.d
print(f"AMP over theory at d = {AMP.d}, relative: mean {np.mean(list(deviation.values())):+.3f}")

# %% [markdown]
# ## λ̃\*(α) against a brute-force grid
#
# On a grid of $\tilde\lambda$ the lowest point is a neighbour of $\tilde\lambda^*$, and never below it.

# %%
tuned = list(tuning_sweep(problem_grid(TUNED_ALPHAS, [0.1], **MODEL), "test_error", THEORY, grid=GRID))
for point in tuned:
    searched = {entry["lam"]: entry["value"] for entry in point.record["curve"] if entry["lam"] in GRID}
    lowest = min(searched, key=searched.__getitem__)
    place = np.flatnonzero(lowest == GRID).item()
    assert GRID[place - 1] < point.optimum.x < GRID[place + 1]
    assert point.optimum.value <= searched[lowest]
    print(f"α = {point.record['alpha']:.2f}: λ̃* = {point.optimum.x:.5f}, lowest of the grid {lowest:.5f}")
figure = plotting.tuning_curves([point.record for point in tuned], MODEL)
with plotting.style():  # the curves of all optima above, in place of lines between five of them
    for axis, values in zip(figure.axes[:2], (best, [optimum.x for optimum in optima]), strict=True):
        axis.lines[0].remove()
        axis.plot(ALPHAS, values, color="0.35", linewidth=0.9, zorder=1)
Image(plotting.render(figure, "png"), retina=True)
