"""The `lopa` command.

`commands` declares the product's own, and adds those of other installed packages. `generate`, `chat`, `scale` and
`models` do what they say, `where_to_decode` chooses between this process and Ray, and `watch` draws the canvas.
"""

from cluster.cli.commands import app as app, main as main
