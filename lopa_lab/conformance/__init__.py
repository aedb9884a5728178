"""Replaying recorded decodes through an engine, and finding what differs first.

A case is one JSON line with what went in and everything that came out (`tests/golden/README.md`
describes the format). `replay` runs cases and gives one `Verdict` for each.
"""
