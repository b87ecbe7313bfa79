"""Images drawn by this package: a dataset that needs no file, no download and no licence.

Sixty classes of figure: outlines, textures and arrangements, in families of near neighbours
(stars, gear, sun, flower; disc, ring, crescent; square, rhombus, rectangle). Colour, place, size,
angle, mirror image, background, line width, blur, noise and small clutter vary from image to
image and say nothing about the class.
"""

from cprompt.data.datasets.shapes.dataset import load
from cprompt.data.datasets.shapes.figures import CLASSES
from cprompt.data.datasets.shapes.scene import draw_image

__all__ = ["CLASSES", "draw_image", "load"]
