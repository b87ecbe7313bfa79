"""What methods are built from: heads, keys, prompts, consistency losses, Gaussians, rows."""
