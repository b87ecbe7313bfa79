"""`cprompt doctor`."""
