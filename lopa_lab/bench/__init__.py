"""`lopa bench`: what steps, commits, decodes and servers cost, as records that anyone can make again.

A module per benchmark measures and returns `Measurements`. `BenchRecord` keeps them with machine, versions, commit and
command, `comparison` compares them with an earlier record, and `report` draws a folder of records.
"""
