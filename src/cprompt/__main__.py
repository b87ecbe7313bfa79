"""`python -m cprompt` is the command `cprompt`; torchrun starts it so."""

from cprompt.cli import main

main()
