"""Two series side by side: what differs between them, and whether their results differ.

`compare` computes a `Comparison`; `grids` and `FORMATS` print it.
"""

from cprompt.report.comparison.compare import Comparison, MetricComparison, compare
from cprompt.report.comparison.statistics import PairedTest, paired_test
from cprompt.report.comparison.text import FORMATS, grids

__all__ = [
    "FORMATS",
    "Comparison",
    "MetricComparison",
    "PairedTest",
    "compare",
    "grids",
    "paired_test",
]
