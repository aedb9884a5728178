"""What runs on the other side of `lopa_lab.paper.tasks.sandbox`: a supervisor per program, and how it confines it.

The supervisor starts anew for each program, without packages of others: only the standard library is imported here, and
this package by relative imports, since in the supervisor it is a top-level package. Linux only.
"""
