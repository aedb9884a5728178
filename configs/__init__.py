"""YAML presets; package data, found by name (`--config demo`, `--config models/llada2.0-mini`, `--config paper/s7`)."""
