"""What measures and studies lopa-ray: nothing of the product imports it.

`bench`, `experiments`, `paper`, `evaluation` and `conformance` are behind the commands of these names (`cli`);
`records` has what their reports share, `word_problems` the problems that the shipped model solves.
"""

import actors as actors  # before Ray, because it sets Ray's authentication
