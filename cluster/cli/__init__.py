"""The `lopa` command: `commands` declares what can be typed, the other modules do it."""

from cluster.cli.commands import app as app, main as main
