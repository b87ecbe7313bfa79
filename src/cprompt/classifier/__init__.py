"""The classifier for people with a folder of photos per class.

`classifier` learns and answers, `photo_sources` reads photos from folders, lists and datasets,
`photos` decodes them, `calibration` calibrates probabilities, `model_folder` stores a classifier,
`onnx_export` exports it.
"""
