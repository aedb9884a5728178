"""The `lopa` script, the same as `python -m lopa_ray`.

It is in this package because a user's folder may shadow `cluster`, whose command it runs: the message then says so.
"""

import sys
from importlib import import_module

from lopa_ray.shadowing import refuse_shadowed_packages


def main() -> None:
    """Run the command line of `cluster.cli`, unless something shadows a package of this project."""
    try:
        refuse_shadowed_packages()
    except ImportError as error:
        sys.exit(f"Error: {error}")
    import_module("cluster.cli").main()


if __name__ == "__main__":
    main()
