"""Approximate message passing, state evolution and training of tied softmax attention, side by side.

Build an `amp_attention.problem.AttentionProblem` (a target, a channel and a denoiser), then ask

- `amp_attention.state_evolution` what training finds at d → ∞, with error bars and stability,
- `amp_attention.amp` for the minimiser on one data set at finite d,
- `amp_attention.erm` what gradient training of the weights reaches on it,
- `amp_attention.experiments` for sweeps and comparisons, as the program `amp-attention` does.

The package never changes JAX's configuration: switch x64 on yourself for double precision.
"""
