"""Collective groups of workers and of shards, in which K/V travels."""
