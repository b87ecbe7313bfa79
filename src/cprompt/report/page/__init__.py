"""A report on any runs: one HTML page, and every figure and table in files of its own."""

from cprompt.report.page.build import BuiltReport, build

__all__ = ["BuiltReport", "build"]
