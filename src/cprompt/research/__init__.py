"""Experiments: from settings to a record, and from records to the paper's tables.

`config` and `recipes` say what a run is, `experiment` makes one, `evaluation` and `metrics`
measure it, `record` keeps the result, `tables` and `cost` rebuild what the paper prints.
"""
