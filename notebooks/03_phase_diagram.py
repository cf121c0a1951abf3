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
# # Four phases of the learned matrix in the plane of (α, λ̃), and the lines between them
#
# The learned matrix is distributed like $\eta\,\mathrm{ReLU}(S_0+\delta Z-\epsilon)$. Its phase says what of
# $S_0+\delta Z$ lies above $\epsilon$: nothing (rank collapse), the bulk with nothing detached from it (bleed-out),
# only what is detached (outliers only), or both. A boundary is the zero of a margin, a smooth function of the fixed
# point, found by Newton's method with its implicit derivative.

# %%
# ruff: noqa: E402 (the environment is set before JAX is imported)
import itertools
import os

from amp_attention._cli.environment import prepare

prepare("float64")

import jax.numpy as jnp
import numpy as np
from IPython.display import Image

from amp_attention import plotting
from amp_attention.boundaries import collapse_lam, crossing, margins
from amp_attention.experiments import (
    FiniteSettings,
    PhaseDiagram,
    TheorySettings,
    problem_at,
    problem_grid,
    run_instances,
)
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.spectrum import PHASES, phase_name
from amp_attention.state_evolution import solve_lowest, state_evolution_nodes

# %%
FAST = bool(os.environ.get("AMP_ATTENTION_FAST"))
MODEL = {"tokens": 2, "noise": 0.5, "beta": 1.0}
KAPPA0 = 0.3
SPIKES = (1.0, 1.5, 2.0)
LIST = FiniteLaw(jnp.asarray([0.0] * 97 + list(SPIKES)))
THEORY = TheorySettings(nodes=512 if FAST else 1024, replicas=4)
MP_ALPHAS = np.geomspace(0.1, 8.0, 3 if FAST else 13)
MP_LAMS = np.geomspace(0.005, 8.0, 4 if FAST else 13)
LIST_ALPHAS = np.geomspace(0.01, 2.0, 3 if FAST else 15)
LIST_LAMS = np.geomspace(0.01, 4.0, 4 if FAST else 13)
DETACHED_LAMS = np.geomspace(0.008, 0.1, 2 if FAST else 6)  # λ̃ at which the detachment of each spike is looked for
COLLAPSED = 0.5  # α at which AMP is run on either side of collapse
AMP = FiniteSettings(d=60, repeats=1 if FAST else 3, test_samples=2_000, keep_matrices=True)


# %%
def half_replicon(problem, point):
    """A margin: zero where R = 1/2."""
    return 0.5 - point.replicon


def diagram(alphas, lams, **model):
    """Records of a grid, boundaries with the level R = 1/2, and nodes; from large λ̃ down, where S = 0 is left."""
    found = PhaseDiagram(THEORY)
    rows = [problem_grid([alpha], lams[::-1], **MODEL, **model) for alpha in alphas]
    points = list(found.rows(rows))
    nodes = state_evolution_nodes(rows[0][0], THEORY.nodes, THEORY.replicas, THEORY.seed)
    level = found.boundaries["level $R=1/2$"] = []
    for high, low in itertools.pairwise(points):
        if high.record["replicon"] < 0.5 < low.record["replicon"] and high.record["alpha"] == low.record["alpha"]:
            bounds = low.record["lam"], high.record["lam"]
            on = crossing(low.theory.problem, nodes, half_replicon, bounds=bounds, start=low.theory.value)
            level.append([low.record["alpha"], on.x])
    return [point.record for point in points], found.boundaries, nodes


def phase_at(problem, nodes):
    """The phase at one point, from its own fixed point."""
    solution = solve_lowest(problem, nodes, tolerance=1e-11)
    assert bool(solution.successful)
    return phase_name(problem.target.law, solution.value.delta, solution.value.epsilon)


# %% [markdown]
# ## Marchenko–Pastur target
#
# With $\kappa_0<1$ the bulk is the band grown from the atom at zero, and the band of the non-zero eigenvalues may be
# detached from it. That a band merges with the next moves the end of the bulk by a jump and has no line.

# %%
records, boundaries, nodes = diagram(MP_ALPHAS, MP_LAMS, kappa0=KAPPA0)
assert all(record["result"] == "successful" for record in records)
figure = plotting.phase_diagram(records, MODEL | {"kappa0": KAPPA0}, boundaries)
Image(plotting.render(figure, "png"), retina=True)

# %% [markdown]
# ## A list of 97 zeros and three spikes
#
# Dotted, from left to right: the first, second and third eigenvalue of $S_0$ detach. These lines run along
# $\tilde\lambda$, so that they are found along $\alpha$.

# %%
list_records, list_boundaries, list_nodes = diagram(LIST_ALPHAS, LIST_LAMS, law=LIST)
assert all(record["result"] == "successful" for record in list_records)
(list_problem,) = problem_grid([0.03], [DETACHED_LAMS[0]], law=LIST, **MODEL)
detached = {}
for k in range(1, len(SPIKES) + 1):
    start = list_problem
    for lam in DETACHED_LAMS:
        on = crossing(
            problem_at(start, lam=lam), list_nodes, margins(k)[f"outlier_{k}"], along="alpha", bounds=(0.02, 1.0)
        )
        assert on.successful
        start = on.problem
        detached[k, lam] = on

figure = plotting.phase_diagram(list_records, MODEL, list_boundaries)
with plotting.style():
    for k in range(1, len(SPIKES) + 1):
        alphas = [detached[k, lam].x for lam in DETACHED_LAMS]
        figure.axes[0].plot(alphas, DETACHED_LAMS, color="0.25", linestyle=":")
        figure.axes[0].text(alphas[0] * 1.04, DETACHED_LAMS[0] * 1.05, f"$s_{k}$", color="0.25")
Image(plotting.render(figure, "png"), retina=True)

# %% [markdown]
# All four phases occur for both targets, and every fixed point is stable, $R<1$: no line $R=1$ crosses either window.
# The level $R=\tfrac12$ shows where the replicon grows.

# %%
for found in (records, list_records):
    assert FAST or {record["phase"] for record in found} == set(PHASES)
    assert all(record["stable"] for record in found)
    print(f"largest replicon on the grid: {max(record['replicon'] for record in found):.3f}")
assert not boundaries["replicon"] and not list_boundaries["replicon"]

# %% [markdown]
# ## What the lines separate
#
# $S=0$ is learned exactly above $\tilde\lambda_c(\alpha)$, which needs no fixed point: it is read off the equations at
# $S=0$. Two percent to either side of a boundary the phases differ, or the margin of the spike has the other sign.

# %%
for found, lines in ((records, boundaries), (list_records, list_boundaries)):
    collapse = dict(lines["collapse"])
    assert all((r["phase"] == "rank_collapse") == (r["lam"] > collapse[r["alpha"]]) for r in found)

(mp_problem,) = problem_grid([1.0], [1.0], kappa0=KAPPA0, **MODEL)
for name, problem, lines, own in (
    ("Marchenko–Pastur", mp_problem, boundaries, nodes),
    ("list", list_problem, list_boundaries, list_nodes),
):
    alpha, lam = lines["bleed_out"][-1]
    sides = [phase_at(problem_at(problem, alpha=alpha, lam=factor * lam), own) for factor in (0.98, 1.02)]
    assert sides == ["outliers_and_bulk", "outliers_only"]
    print(f"{name}: at α = {alpha:.2f} the bulk leaves S at λ̃ = {lam:.4f}")

for k in range(1, len(SPIKES) + 1):
    margin, on = margins(k)[f"outlier_{k}"], detached[k, DETACHED_LAMS[-1]]
    for factor, sign in ((0.98, -1), (1.02, 1)):
        aside = problem_at(on.problem, alpha=factor * on.x)
        assert sign * float(margin(aside, solve_lowest(aside, list_nodes, tolerance=1e-11).value)) > 0
    print(f"list: at λ̃ = {DETACHED_LAMS[-1]:g} eigenvalue {k} of S0 detaches at α = {on.x:.4f}")
    assert k == 1 or on.x > detached[k - 1, DETACHED_LAMS[-1]].x

# %% [markdown]
# ## AMP on either side of collapse
#
# At $1.3\,\tilde\lambda_c$ AMP returns $S=0$ exactly with a vanishing KKT residual, at $0.7\,\tilde\lambda_c$ it does
# not.

# %%
lam_c = float(collapse_lam(problem_at(mp_problem, alpha=COLLAPSED), nodes))
for factor in (1.3, 0.7):
    problem = problem_at(mp_problem, alpha=COLLAPSED, lam=factor * lam_c)
    runs = run_instances(problem, ["amp"], AMP)["amp"].runs
    assert all(run.record["result"] == "successful" for run in runs)
    assert all(bool(np.all(run.S == 0)) == (factor > 1) for run in runs)
    if factor > 1:
        assert all(run.record["gradient_norm"] == 0 for run in runs)
    print(f"λ̃ = {factor} λ̃_c: largest entry of |S| {[f'{np.abs(run.S).max():.4f}' for run in runs]}")
