"""Experiments: from settings to a record, and from records to the paper's tables.

`config` and `recipes` define a run, `experiment` executes it, `evaluation` and `metrics` measure
it, `record` stores the result, `tables` and `cost` rebuild the paper's tables.
"""
