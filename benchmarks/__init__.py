"""How fast the package is, compared with the way the released code does the same.

From the repository root, `python -m benchmarks` runs them all and `python -m benchmarks.NAME` one.
Each prints one table and writes JSON.
"""

from cprompt.cli.start import keep_freed_memory

keep_freed_memory()  # as every command does; all contenders have it
