"""The paper's tables and figures: published numbers, what makes each cell, and runs beside them."""
