"""The command line of explore."""
