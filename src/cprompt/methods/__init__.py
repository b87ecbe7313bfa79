"""The methods: `base` defines the interface, then one file per method.

`registry` knows all methods by name and imports a method when it is first used. `parts` holds what
methods are built from.
"""
