"""One decode group as Ray actors: a master, its branch workers, and how K/V moves between them. `__init__.pyi` lists
the public API; each name is imported when it is first used."""

import lazy_loader

from actors.connection.ray_token import follow_cluster

# This call comes before any module of this package or of `cluster` imports Ray.
follow_cluster()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
