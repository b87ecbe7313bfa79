"""The frozen vision transformer and the ways to prompt it.

`promptable` runs a timm ViT with extra tokens or key/value prefixes, `loading` builds one from
timm, a file or the embedded weights, `embedded` holds those weights and their description.
"""
