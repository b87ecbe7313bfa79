"""The classifier for people with a folder of photos per class.

`classifier` learns and answers, `photo_sources` says what photos can be given as, `photos` decodes
them, `calibration` makes its probabilities honest, `model_folder` stores it, `onnx` exports it.
"""
