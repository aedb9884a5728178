"""`python -m cluster.cli`, the same as `lopa`."""

from cluster.cli import main

if __name__ == "__main__":
    main()
