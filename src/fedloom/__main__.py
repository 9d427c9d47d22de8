"""`python -m fedloom` is `fedloom`."""

from fedloom.cli import main

main()
