"""The choice of what to fill: sessions, canvases, lookahead and the rules of each decoder. No torch, no I/O."""
