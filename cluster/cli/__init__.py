"""The `lopa` command.

`commands` declares what can be typed, with `options`; `generate`, `conformance` and `scale` do it, `watch` draws the
canvas, `exit_status` ends a command.
"""

from cluster.cli.commands import app as app, main as main
