"""`python -m explore.cli` is the command `explore`."""

from explore.cli.main import main

main(prog_name="explore")
