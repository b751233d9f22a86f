"""`python -m declarative` is the command `fleetform`."""

from declarative.cli import main

if __name__ == "__main__":
    main()
