"""Lookahead Parallel Decoding for diffusion language models: the decoder, without Ray.

`__init__.pyi` lists the public API. Each name is imported when it is first used, so that this package itself imports
at once. Everything that is not listed may move between releases.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
