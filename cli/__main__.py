"""Entry point of `python -m explore.cli`, which is the same as `explore`."""

from explore.cli.main import main

if __name__ == "__main__":
    main(prog_name="explore")
