"""The classifier for people with a folder of photos per class.

`classifier` learns and answers, `photo_sources` reads photos in any form, `calibration` makes its
probabilities honest, `model_folder` stores it, `onnx` exports it.
"""
