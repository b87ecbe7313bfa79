"""A model folder behind HTTP: predictions, learning in the background, and a page for people."""
