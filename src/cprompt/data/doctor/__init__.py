"""The doctor: every image of a dataset is decoded, and everything that is wrong is named.

`diagnosis` says what a diagnosis is and makes one, `digests` decodes, `checks` look for problems.
"""

from cprompt.data.doctor.checks import Problem
from cprompt.data.doctor.diagnosis import Diagnosis, PerClass, diagnose

__all__ = ["Diagnosis", "PerClass", "Problem", "diagnose"]
