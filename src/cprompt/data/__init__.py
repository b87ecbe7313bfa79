"""Images, labels and class names; nothing here knows what a task is.

`image_set` says what a dataset is, `registry` finds one by name, `doctor` checks a copy on disk;
`datasets` has a loader per dataset, `pipeline` turns image files into batches for a network.
"""
