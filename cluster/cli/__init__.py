"""The `lopa` command.

`commands` declares the product's own, and adds those of other installed packages; `generate`, `scale` and `models` do
it, and `watch` draws the canvas.
"""

from cluster.cli.commands import app as app, main as main
