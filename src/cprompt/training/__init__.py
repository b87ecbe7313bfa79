"""The training loop, the only one, for every method.

`learner` trains one task after another, `step` computes one update, `cuda_graphs` and
`acceleration` make it fast on a GPU, `observers` show progress.
"""
