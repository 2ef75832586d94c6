"""`python -m explore.cli` is the command `explore`."""

from explore.cli.main import main

if __name__ == "__main__":
    main(prog_name="explore")
