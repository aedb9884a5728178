"""Lookahead Parallel Decoding for diffusion language models: the decoder, without Ray.

`__init__.pyi` lists the public API. Each name is imported when it is first used, so that this package itself imports
at once. Everything that is not listed may move between releases.
"""

import lazy_loader

from lopa_ray.shadowing import warn_of_shadowed_packages

__version__ = "0.1.0"

_import_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    warn_of_shadowed_packages()
    return _import_name(name)
