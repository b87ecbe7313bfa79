"""How fast it is, against the released code's way of doing the same.

From the repository root, `python -m benchmarks` runs them all and `python -m benchmarks.NAME` one.
Each prints one table and writes JSON.
"""
