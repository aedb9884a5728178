"""Measurements and studies of lopa-ray: nothing of the product imports them.

`bench`, `experiments`, `paper`, `evaluation` and `conformance` are the code of the commands of these names (`cli`);
`records` has what their reports share, `word_problems` the problems that the shipped model solves.
"""

import actors as actors  # before Ray, because it sets Ray's authentication
