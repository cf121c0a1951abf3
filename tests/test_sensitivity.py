"""Derivatives of a fixed point against re-solved ones, forward against reverse, and where they must or may not fail."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import RESULTS
from amp_attention.problem import attention_problem
from amp_attention.sensitivity import (
    PARAMETERS,
    envelope_gradient,
    expansion,
    gradient,
    observable,
    parameter,
    with_parameter,
)
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.state_evolution import (
    FixedPoint,
    implicit_fixed_point,
    solve_lowest,
    solve_state_evolution,
    state_evolution_nodes,
)

SPECTRUM = (0.0, 0.0, 0.0, 0.6, 1.1, 1.1, 2.4, 3.0)  # with repeated eigenvalues
CASES = {
    "colder-student": {"alpha": 0.5, "lam": 0.05, "beta": 1.3, "beta0": 0.9},
    "three-tokens": {"alpha": 0.3, "lam": 0.05, "tokens": 3, "noise": 0.3},
    "eigenvalues": {"alpha": 0.4, "lam": 0.08, "law": SPECTRUM, "noise": 0.2},
}
# Fourth-order central differences at these steps: their error is far below the tolerance, as is that of the solver.
STEP, TOLERANCE = 2e-3, 1e-12
# Every observable at once, with weights of both signs: an error in one of them is an error in the sum.
NAMES = [name for name in FixedPoint.__dataclass_fields__ if name not in ("standard_error", "replicon")]
WEIGHTS = {name: (-1.0) ** i * (1 + 0.1 * i) for i, name in enumerate(NAMES)}


def everything(problem, point):
    return sum(weight * getattr(point, name) for name, weight in WEIGHTS.items())


def problem_of(options):
    options = dict(options)
    law = options.pop("law", None)
    return attention_problem(law=None if law is None else FiniteLaw(jnp.asarray(law)), **options)


def nodes_of(problem):
    return state_evolution_nodes(problem, 256, 4)


def solved(problem, start=None):
    return solve_state_evolution(problem, nodes_of(problem), start=start, tolerance=TOLERANCE)


def resolved(problem, name, start, of):
    """An observable as a function of one number, by solving again."""

    def value(x):
        moved = with_parameter(problem, name, x)
        return float(of(moved, solved(moved, start).value))

    return value


def central_difference(function, x, step=STEP):
    x = float(x)
    h = step * max(abs(x), 0.1)
    near, far = function(x + h) - function(x - h), function(x + 2 * h) - function(x - 2 * h)
    return (8 * near - far) / (12 * h)


def second_difference(function, x):
    x = float(x)
    h = 5 * STEP * abs(x)
    near, far = function(x + h) + function(x - h), function(x + 2 * h) + function(x - 2 * h)
    return (16 * near - far - 30 * function(x)) / (12 * h**2)


SLOW = [pytest.param(CASES[name], marks=pytest.mark.slow, id=name) for name in ("three-tokens", "eigenvalues")]


@pytest.fixture(scope="module", params=[pytest.param(CASES["colder-student"], id="colder-student"), *SLOW])
def case(request):
    problem = problem_of(request.param)
    solution = solved(problem)
    assert bool(solution.successful)
    return problem, nodes_of(problem), solution


def test_every_number_against_resolved_fixed_points(case):
    problem, nodes, solution = case
    found = gradient(problem, nodes, solution, everything)
    assert found.value == pytest.approx(float(everything(problem, solution.value)), rel=1e-9)
    for name in PARAMETERS:
        if (value := parameter(problem, name)) is not None:
            wanted = central_difference(resolved(problem, name, solution.value, everything), value)
            assert found[name] == pytest.approx(wanted, rel=1e-5), name


def test_forward_is_reverse(case):
    problem, nodes, solution = case
    backward = gradient(problem, nodes, solution, everything).problem
    numbers, rest = eqx.partition(problem, eqx.is_inexact_array)
    direction = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) + x, numbers)

    def value(numbers):
        moved = eqx.combine(numbers, rest)
        return everything(moved, implicit_fixed_point(moved, nodes, solution))

    _, forward = jax.jit(lambda x, v: jax.jvp(value, (x,), (v,)))(numbers, direction)
    along = jax.tree.map(lambda g, v: jnp.sum(g * v), eqx.filter(backward, eqx.is_inexact_array), direction)
    assert float(sum(jax.tree.leaves(along))) == pytest.approx(float(forward), rel=1e-9)


def test_second_derivative_in_lam(case):
    problem, nodes, solution = case
    found = expansion(problem, nodes, solution)
    again = resolved(problem, "lam", solution.value, lambda _, point: point.test_error)
    lam = parameter(problem, "lam")
    assert found.value == pytest.approx(float(solution.value.test_error), rel=1e-12)
    assert found.first == pytest.approx(central_difference(again, lam), rel=1e-5)
    assert found.second == pytest.approx(second_difference(again, lam), rel=1e-4)


@pytest.mark.slow
def test_the_replicon_is_differentiable_as_well(case):
    problem, nodes, solution = case
    found = gradient(problem, nodes, solution, "replicon")
    for name in ("alpha", "lam", "noise"):
        again = resolved(problem, name, solution.value, lambda _, point: point.replicon)
        assert found[name] == pytest.approx(central_difference(again, parameter(problem, name)), rel=1e-5)


def test_envelope_derivatives_need_no_linear_solve(case):
    problem, nodes, solution = case
    envelope = envelope_gradient(problem, nodes, solution)
    np.testing.assert_allclose(envelope["lam"], solution.value.trace, rtol=1e-10)
    for name in ("alpha", "noise", "beta"):
        again = resolved(problem, name, solution.value, lambda _, point: point.free_entropy)
        assert envelope[name] == pytest.approx(central_difference(again, parameter(problem, name)), rel=1e-6)
    jaxpr = str(jax.make_jaxpr(lambda p: envelope_gradient(p, nodes, solution).value)(problem))
    assert "lu[" not in jaxpr and "triangular_solve" not in jaxpr


@pytest.mark.slow
def test_each_eigenvalue_of_a_list():
    problem = problem_of(CASES["eigenvalues"])
    solution = solved(problem)
    found = gradient(problem, nodes_of(problem), solution, everything).problem.target.law.eigenvalues
    for index in (0, 3, 7):

        def value(x, index=index):
            law = FiniteLaw(problem.target.law.eigenvalues.at[index].set(x))
            moved = eqx.tree_at(lambda p: p.target.law, problem, law)
            return float(everything(moved, solved(moved, solution.value).value))

        wanted = central_difference(value, problem.target.law.eigenvalues[index])
        assert found[index] == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_allclose(found[4], found[5], rtol=1e-10)  # equal eigenvalues have equal derivatives


@pytest.mark.slow
def test_through_the_solver_itself_and_through_the_constructor():
    """As a user writes it: no mention of implicit functions."""
    problem = problem_of(CASES["colder-student"])
    nodes = nodes_of(problem)

    def error(gamma, max_steps=1000):
        law = FiniteLaw.power_law(gamma, 8)
        moved = eqx.tree_at(lambda p: p.target.law, problem, law)
        return solve_lowest(moved, nodes, tolerance=TOLERANCE, max_steps=max_steps).value.test_error

    gamma = jnp.asarray(1.2)
    found, wanted = jax.jit(jax.grad(error))(gamma), central_difference(jax.jit(error), gamma)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert np.isnan(jax.grad(error)(gamma, max_steps=2))


@pytest.mark.slow
def test_batches_of_problems():
    problem = problem_of(CASES["colder-student"])
    nodes = nodes_of(problem)

    def slope(lam):
        moved = with_parameter(problem, "lam", lam)
        return gradient(moved, nodes, solve_state_evolution(moved, nodes, tolerance=TOLERANCE))["alpha"]

    lams = jnp.asarray([0.03, 0.08])
    np.testing.assert_allclose(jax.jit(jax.vmap(slope))(lams), [slope(lam) for lam in lams], rtol=1e-8)


def test_no_derivative_where_the_solver_did_not_converge():
    problem = problem_of(CASES["colder-student"])
    nodes = nodes_of(problem)
    failed = solve_state_evolution(problem, nodes, max_steps=2)
    assert failed.result == RESULTS.max_steps_reached and np.isfinite(failed.value.test_error)
    for slope in (gradient(problem, nodes, failed, everything), envelope_gradient(problem, nodes, failed)):
        assert np.isfinite(slope.value)
        assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(slope.problem))
    assert np.isnan(expansion(problem, nodes, failed).second)


def test_no_derivative_of_the_solution_of_another_problem():
    problem = problem_of(CASES["colder-student"])
    nodes = nodes_of(problem)
    other, solution = with_parameter(problem, "lam", 0.5), solved(problem)
    for slope in (gradient(other, nodes, solution, everything), envelope_gradient(other, nodes, solution)):
        assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(slope.problem))


EDGES = {
    "small-lam": {"alpha": 0.5, "lam": 1e-6},
    "noiseless": {"alpha": 0.2, "lam": 0.02, "noise": 0.0},
    "noiseless-recovery": {"alpha": 0.6, "lam": 1e-3, "noise": 0.0},
    "full-rank-target": {"alpha": 0.5, "lam": 0.05, "kappa0": 1.0},
    "hot": {"alpha": 0.5, "lam": 1e-9, "beta": 1e-3, "beta0": 1e-3},
    "cold": {"alpha": 0.5, "lam": 0.3, "beta": 50.0, "beta0": 50.0},
    "all-eigenvalues-zero": {"alpha": 0.5, "lam": 3.0},
    "no-eigenvalue-zero": {"alpha": 6.0, "lam": 1e-3, "kappa0": 8.0, "noise": 0.01},
}


@pytest.mark.parametrize("name", EDGES)
def test_gradients_at_the_edges_are_finite_and_right(name):
    problem = problem_of(EDGES[name])
    nodes = nodes_of(problem)
    solution = solve_lowest(problem, nodes, tolerance=TOLERANCE)
    assert bool(solution.successful)
    zeros = {"all-eigenvalues-zero": 1.0, "no-eigenvalue-zero": 0.0}
    if name in zeros:
        assert solution.value.zero_fraction == zeros[name]
    slope = gradient(problem, nodes, solution, everything)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    for parameter_name in ("alpha", "beta0"):
        again = resolved(problem, parameter_name, solution.value, everything)
        # At large β a node can change between two minima within a longer step.
        wanted = central_difference(again, parameter(problem, parameter_name), step=1e-4)
        assert slope[parameter_name] == pytest.approx(wanted, rel=1e-5, abs=1e-8), parameter_name


def test_names_that_do_not_exist_are_refused():
    problem = problem_of(CASES["eigenvalues"])
    with pytest.raises(ValueError, match=r"of must be one of .*test_error.*got 'error'"):
        observable("error")
    with pytest.raises(ValueError, match=r"parameter must be one of alpha.*got 'gamma'"):
        parameter(problem, "gamma")
    with pytest.raises(ValueError, match="got 'kappa0'"):
        with_parameter(problem, "kappa0", 0.3)
    assert parameter(problem, "kappa0") is None
