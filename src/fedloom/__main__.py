"""`python -m fedloom` is `fedloom`."""

from fedloom.cli.main import main

main()
