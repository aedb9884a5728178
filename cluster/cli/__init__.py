"""The `lopa` command: `commands` declares the product's commands, and adds the commands of other installed packages."""

from cluster.cli.commands import app as app, main as main
