"""From image files to batches: decoding and its cache, views, resampling on a GPU, the loader."""
