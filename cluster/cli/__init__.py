"""The `lopa` command: `commands` declares the product's own, and adds those of other installed packages."""

from cluster.cli.commands import app as app, main as main
