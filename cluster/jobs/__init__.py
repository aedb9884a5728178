"""Batch jobs: a file of prompts, decoded by many groups.

    ray job submit --working-dir . -- python -m cluster.jobs --input FILE --output FILE --groups 4

`source` reads the prompts, `work_queue` sends them in chunks to the actors of `group`, which decode them,
`resumable_output` writes the results, `progress` logs, `storage` reaches files at any URL.
"""
