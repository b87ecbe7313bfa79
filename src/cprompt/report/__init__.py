"""What people see of records: tables, figures and pages, made from records only.

`runs` finds records, `series` groups them, `numbers` computes; `figures`, `tables`, `page`,
`comparison` and `terminal` show. Nothing here trains, evaluates or loads a backbone.
"""
