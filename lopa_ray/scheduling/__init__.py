"""Scheduling of many requests on a group of workers: steps, assignment of branches, recovery, prefix caching, scaling.
This package does no I/O and does not import torch."""
