"""Batch jobs: a file of prompts, decoded by many groups.

    ray job submit --working-dir . -- python -m cluster.jobs --input FILE --output FILE --groups 4

`source` reads the prompts, `output` keeps what is done, `group` decodes, `work_queue` hands out the work.
"""
