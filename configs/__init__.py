"""YAML presets; package data, found by name (`--config demo`, `--config paper/s7`)."""
