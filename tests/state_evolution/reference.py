"""Independent values of the fixed point (mean, standard error), Marchenko–Pastur target.

The first three problems were solved by independent code on its own node sets; the last by deterministic quadrature. The
standard errors of problems 2 and 3 come from four node sets and are multiplied by 2.5.
"""

POINTS = {
    "kappa05-noise": (
        {"alpha": 0.5, "lam": 0.05, "tokens": 2, "kappa0": 0.5, "noise": 0.5},
        {
            "Sigma": (1.25117, 1.4e-4),
            "m": (1.05392, 3e-5),
            "q": (0.83583, 5e-5),
            "q_hat": (0.044377, 8e-6),
            "m_hat": (0.3908, 4e-5),
            "Sigma_hat": (0.49622, 7e-5),
            "test_error": (0.121224, 6e-6),
            "free_entropy": (0.047913, 1e-6),
            "train_error": (0.02159, 2e-6),
            "squared_error": (0.227986, 1e-5),
            "replicon": (0.34945, 7e-5),
            "delta": (0.53904, 3e-5),
            "epsilon": (0.25588, 3e-5),
            "eta": (0.78756, 3e-5),
            "zero_fraction": (0.43879, 1e-5),
        },
    ),
    "three-tokens": (
        {"alpha": 0.3, "lam": 0.05, "tokens": 3, "kappa0": 0.5, "noise": 0.3},
        {
            "m": (1.1439487, 2.5 * 0.0013),
            "q": (0.9247769, 2.5 * 0.002),
            "test_error": (0.1241079, 2.5 * 2.9e-4),
            "train_objective": (0.0445531, 2.5 * 6e-5),
            "squared_error": (0.1368794, 2.5 * 5.1e-4),
            "replicon": (0.2737467, 2.5 * 0.0012),
        },
    ),
    "noiseless-colder-student": (
        {"alpha": 0.6, "lam": 0.03, "tokens": 2, "kappa0": 0.3, "noise": 0.0, "beta0": 1.0, "beta": 2.0},
        {
            "Sigma": (0.1989984, 2.5 * 4.6e-4),
            "m": (0.6051603, 2.5 * 2.9e-5),
            "q": (0.2818669, 2.5 * 2.6e-5),
            "test_error": (0.0007995, 2.5 * 1.2e-6),
            "replicon": (0.28626, 2.5 * 6e-5),
        },
    ),
    "quadrature": (
        {"alpha": 1.5, "lam": 0.1, "tokens": 2, "kappa0": 0.8, "noise": 1.0, "beta0": 0.5, "beta": 1.0},
        {
            "Sigma": (0.2782773, 2e-6),
            "m": (0.7377988, 2e-6),
            "q": (0.3198902, 2e-6),
            "q_hat": (0.1892852, 2e-6),
            "m_hat": (1.2447294, 2e-6),
            "Sigma_hat": (2.8086344, 2e-6),
            "test_error": (0.0680919, 2e-6),
            "free_entropy": (0.109401, 2e-6),
            "train_error": (0.0731114, 2e-6),
            "squared_error": (0.6442925, 2e-6),
            "replicon": (0.1440539, 2e-6),
            "delta": (0.3495292, 2e-6),
            "epsilon": (0.1606775, 2e-6),
            "eta": (0.4431796, 2e-6),
            "zero_fraction": (0.3098057, 2e-6),
        },
    ),
}
