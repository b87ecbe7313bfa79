"""The classifier for people with a folder of photos per class.

`classifier` learns and answers, `photo_sources` reads photos from folders, lists and datasets,
`photos` decodes them, `batch_checks` refuses inconsistent batches, `calibration` calibrates
probabilities, `model_folder` stores a classifier, `readable` and `inbox` answer folders with bad or
arriving photos, `onnx_export` exports it.
"""
