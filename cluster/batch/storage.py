"""Files, local or at any URL that fsspec supports."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec.core import OpenFile, get_compression, url_to_fs

from lopa_ray.errors import SettingsError


@contextmanager
def storage_errors(option: str, url: str) -> Iterator[None]:
    """Raises SettingsError, which names the option and the file, for what fails while a file is used."""
    try:
        yield
    except SettingsError:
        raise
    except FileNotFoundError:
        raise SettingsError(
            f"{option}: {url} does not exist; a local path refers to this machine, of a job to its driver's node"
        ) from None
    except ImportError as error:
        raise SettingsError(
            f"{option}: {url} needs a package that is not installed: {error}; name it in the job's "
            "--runtime-env-json '{\"pip\": [...]}', or install it on all nodes"
        ) from None
    except (OSError, ValueError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise SettingsError(f"{option}: cannot use {url}: {type(error).__name__}: {error}") from None


def resolve_url(url: str) -> tuple[Any, str]:
    """File system, and the path there. Local paths are made absolute."""
    if "://" not in url and "::" not in url:
        url = str(Path(url).expanduser().absolute())
    file_system, path = url_to_fs(url)
    return file_system, path


def write_atomically(file_system: Any, path: str, contents: Iterator[bytes]) -> None:
    """Write a file, compressed if its name says so, that gets its name only when it is complete, also after a failure.

    Local file systems rename; object stores copy on their side, and show a copy when it is complete.
    """
    unfinished = f"{path}.tmp"
    with OpenFile(file_system, unfinished, "wb", compression=compression_of(path)) as file:
        for content in contents:
            file.write(content)
    file_system.mv(unfinished, path)


def open_compressed(file_system: Any, path: str) -> OpenFile:
    """A file to read, compressed if its name says so."""
    return OpenFile(file_system, path, compression=compression_of(path))


def compression_of(path: str) -> str | None:
    """What a file's name says (`.gz`, `.bz2`, `.xz`, `.zst` and others of fsspec); None: that it is not compressed."""
    compression: str | None = get_compression(path, "infer")
    return compression


def is_absolute(url: str) -> bool:
    """Whether the path means the same file in every working folder."""
    return "://" in url or "::" in url or Path(url).expanduser().is_absolute()
