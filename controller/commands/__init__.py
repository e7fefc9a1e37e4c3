"""The small commands of the command line, one a file."""
