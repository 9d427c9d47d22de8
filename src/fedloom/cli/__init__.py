"""The command line."""

from fedloom.cli.main import main

__all__ = ["main"]
