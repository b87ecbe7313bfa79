"""The frozen backbone, read by its layers, and the ways to prompt a vision transformer.

`backbone` says what all of them offer, `promptable` runs a timm ViT with extra tokens or key/value
prefixes, `frozen_model` reads any other timm model, `loading` builds one from timm, a file or the
embedded weights, `embedded` holds those weights and their description.
"""
