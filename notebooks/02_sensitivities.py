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
# # One linear solve at the fixed point gives the derivative of the test error in every number of the problem
#
# At a fixed point $x=F(x,\theta)$ of state evolution an observable has the derivative
# $\mathrm dE/\mathrm d\theta=\partial_\theta E+\partial_xE\,(1-\partial_xF)^{-1}\partial_\theta F$, with three unknowns
# $x$. That of the free entropy needs no solve, since $\Phi$ is stationary: $\mathrm d\Phi^*/\mathrm d\tilde\lambda
# =\mathrm{Tr}\,S/d$. At finite $d$ the same theorem applies to the fixed point of AMP.

# %%
# ruff: noqa: E402 (the environment is set before JAX is imported)
import os

from amp_attention._cli.environment import prepare

prepare("float64")

import numpy as np
import pandas as pd
from IPython.display import Image
from matplotlib.figure import Figure

from amp_attention import plotting
from amp_attention.experiments import FiniteSettings, TheorySettings, problem_grid, sensitivity_sweep
from amp_attention.problem import attention_problem
from amp_attention.sensitivity import envelope_gradient, gradient, parameter, with_parameter
from amp_attention.state_evolution import solve_state_evolution, state_evolution_nodes
from amp_attention.thresholds import threshold_gradients, thresholds

# %%
FAST = bool(os.environ.get("AMP_ATTENTION_FAST"))
MODEL = {"tokens": 2, "kappa0": 0.5, "noise": 0.5, "beta": 1.0}
LAM = 0.05
ALPHAS = np.geomspace(0.1, 3.0, 2 if FAST else 25)
THEORY = TheorySettings(nodes=512 if FAST else 2048, replicas=4)
AMP_ALPHAS = (0.25,) if FAST else (0.25, 0.5, 1.0)
AMP = FiniteSettings(d=30 if FAST else 60, repeats=2 if FAST else 3, test_samples=20_000)
POINTS = 8 if FAST else 40  # of each threshold
ALPHA = 0.25  # of the table of central differences
STEP = 1e-4  # relative to the number
PARAMETERS = ("alpha", "lam", "beta", "beta0", "noise", "kappa0")

# %% [markdown]
# ## Along α
#
# Lines are state evolution with its standard error over scrambles of the nodes, points are AMP's derivative in
# $\tilde\lambda$, the mean over instances. The test error falls with $\alpha$ and rises with the noise $\Delta$;
# its derivative in $\tilde\lambda$ changes sign where $\tilde\lambda^*(\alpha)$ passes the value at hand.

# %%
lines = [point.record for point in sensitivity_sweep(problem_grid(ALPHAS, [LAM], **MODEL), settings=THEORY)]
points = sensitivity_sweep(problem_grid(AMP_ALPHAS, [LAM], **MODEL), settings=THEORY, finite=AMP)
measured = [point.record for point in points]
assert all(record["result"] == "successful" for record in lines + measured)
assert all(record["gradients"]["alpha"] < 0 < record["gradients"]["noise"] for record in lines)
assert lines[0]["gradients"]["lam"] * lines[-1]["gradients"]["lam"] < 0
figure = plotting.sensitivity_curves(lines + measured, MODEL | {"lam": LAM, "repeats": AMP.repeats})
Image(plotting.render(figure, "png"), retina=True)

# %% [markdown]
# ## Against central differences
#
# Each number is moved by a relative $\pm10^{-4}$ and the fixed point solved again. $\beta$ and $\beta_0$ are two
# numbers, also where they are equal.

# %%
problem = attention_problem(ALPHA, LAM, **MODEL)
nodes = state_evolution_nodes(problem, THEORY.nodes, THEORY.replicas, THEORY.seed)
solution = solve_state_evolution(problem, nodes, tolerance=1e-12)
assert bool(solution.successful)
slopes = gradient(problem, nodes, solution, "test_error")


def central(name, observable):
    """Central difference of an observable along one number."""
    value, ends = float(parameter(problem, name)), []
    for sign in (-1, 1):
        moved = with_parameter(problem, name, value * (1 + sign * STEP))
        found = solve_state_evolution(moved, nodes, start=solution.value, tolerance=1e-12)
        assert bool(found.successful)
        ends.append(float(getattr(found.value, observable)))
    return (ends[1] - ends[0]) / (2 * STEP * value)


table = pd.DataFrame(
    {"implicit derivative": float(slopes[name]), "central difference": central(name, "test_error")}
    for name in PARAMETERS
)
table.index = pd.Index(PARAMETERS, name="de/d·")
table["relative gap"] = (table["implicit derivative"] / table["central difference"] - 1).abs()
assert table["relative gap"].max() < 1e-5
print(table.to_string(formatters={"relative gap": "{:.0e}".format}, float_format="{:.8f}".format))

# %% [markdown]
# ## The envelope identity
#
# At fixed order parameters the derivative of $\Phi$ in $\tilde\lambda$ is $\mathrm{Tr}\,S/d$, and it is that of
# $\Phi^*$.

# %%
envelope = float(envelope_gradient(problem, nodes, solution)["lam"])
trace, difference = float(solution.value.trace), central("lam", "free_entropy")
assert abs(envelope - trace) < 1e-10
assert abs(difference - trace) < 1e-6
print(f"∂Φ/∂λ̃ at fixed order parameters  {envelope:.10f}")
print(f"Tr S/d                            {trace:.10f}")
print(f"central difference of Φ*          {difference:.10f}")

# %% [markdown]
# ## AMP's derivative beside the theory's
#
# $\mathrm de/\mathrm d\tilde\lambda$ of AMP by implicit differentiation of its fixed point, at the $\alpha$ of the
# table: it is that of the theory up to four standard errors and a relative $10/d$.

# %%
(record,) = (record for record in measured if record["alpha"] == ALPHA)
found, wanted = record["finite_d"], record["gradients"]["lam"]
assert found["result"] == "successful"
print(f"theory {wanted:.4f} ± {record['gradients_standard_error']['lam']:.4f}")
print(f"AMP    {found['lam']:.4f} ± {found['standard_error']:.4f}   (d = {found['d']}, {AMP.repeats} instances)")
assert abs(found["lam"] - wanted) < 4 * found["standard_error"] + 10 * abs(wanted) / found["d"]

# %% [markdown]
# ## Thresholds
#
# $\alpha_\mathrm{interp}(\Delta)$, up to which $\lambda\to0^+$ fits noisy labels, and $\alpha_\mathrm{perf}(\kappa_0)$,
# from which it recovers the target of noiseless ones, with tangents of the slopes $\mathrm d\alpha_\mathrm{interp}/
# \mathrm d\Delta$ and $\mathrm d\alpha_\mathrm{perf}/\mathrm d\kappa_0$. Noise lowers the first threshold, rank raises
# the second until it is full.

# %%
CURVES = {  # number of the target: its values, those with a tangent, threshold, other numbers, sign of the slope
    "noise": (np.linspace(0.05, 2.0, POINTS), (0.2, 0.5, 1.5), "interpolation", {"kappa0": MODEL["kappa0"]}, -1),
    "kappa0": (np.linspace(0.02, 1.2, POINTS), (0.1, 0.3, 0.7), "recovery", {"noise": 0.0}, 1),
}
LABELS = {
    "noise": {"xlabel": r"label noise $\Delta$", "ylabel": r"$\alpha_\mathrm{interp}$"},
    "kappa0": {"xlabel": r"teacher width $\kappa_0$", "ylabel": r"$\alpha_\mathrm{perf}$"},
}


def at(name, value):
    """The threshold and its slope along one number of the target."""
    _, _, threshold, others, _ = CURVES[name]
    target = attention_problem(1.0, 0.0, **(MODEL | others | {name: value})).target
    slope = getattr(threshold_gradients(target), name)
    return float(getattr(thresholds(target), threshold)), float(getattr(slope, threshold))


rows = []
with plotting.style():
    figure = Figure(figsize=(7.0, 2.7), layout="constrained")
    for axis, (name, (values, chosen, threshold, _, sign)) in zip(figure.subplots(1, 2), CURVES.items(), strict=True):
        axis.plot(values, [at(name, value)[0] for value in values])
        for value in chosen:
            height, slope = at(name, value)
            down, up = (at(name, value * (1 + side * STEP))[0] for side in (-1, 1))
            rows.append((threshold, name, value, slope, (up - down) / (2 * STEP * value)))
            reach = 0.12 * np.ptp(values) * np.asarray([-1, 1])
            axis.plot(value + reach, height + slope * reach, color=plotting.COLOURS[1], linewidth=0.9)
            axis.plot(value, height, "o", color=plotting.COLOURS[1], markersize=3.5)
            assert sign * slope > 0
        axis.set(xlim=(0, values[-1]), ylim=(0, None), **LABELS[name])
columns = ["threshold", "along", "at", "derivative", "central difference"]
slopes_table = pd.DataFrame(rows, columns=columns)
np.testing.assert_allclose(slopes_table["derivative"], slopes_table["central difference"], rtol=1e-6)
print(slopes_table.to_string(index=False, float_format="{:.8g}".format))
Image(plotting.render(figure, "png"), retina=True)
