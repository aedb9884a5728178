"""One decode group as Ray actors: a master, its branch workers, and how K/V moves between them."""
