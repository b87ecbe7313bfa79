"""The methods: `base` says what one is, then a file per method.

`registry` knows them all by name and imports one when it is asked for; `parts` holds what several
methods are built from.
"""
