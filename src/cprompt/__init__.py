"""Image classifiers that keep learning new classes on a frozen vision transformer."""

__version__ = "0.1.0.dev0"
