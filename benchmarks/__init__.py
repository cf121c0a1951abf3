"""Benchmarks: `pytest benchmarks --benchmark-json=benchmarks.json`; see README.md beside this file."""
