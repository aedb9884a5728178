"""`lopa experiment`: open questions about LoPA, a module per question.

`table` lists them; `run` measures, keeps and reports.
"""
