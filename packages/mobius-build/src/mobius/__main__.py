"""`python -m mobius`: the command line, where its script is not on the path."""

from mobius.cli import main

main()
