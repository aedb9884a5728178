"""Files, local or at any URL that fsspec supports."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast
from zipfile import BadZipFile

from fsspec.core import OpenFile, get_compression, url_to_fs

from lopa_ray.errors import SettingsError


class DamagedFileError(ValueError):
    """A compressed file has other bytes than its compression writes."""


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
    except (OSError, ValueError, EOFError) as error:
        raise SettingsError(f"{option}: cannot use {url}: {type(error).__name__}: {error}") from None


def resolve_url(url: str) -> tuple[Any, str]:
    """File system, and the path there. Local paths are made absolute."""
    if "://" not in url and "::" not in url:
        url = str(Path(url).expanduser().absolute())
    file_system, path = url_to_fs(url)
    return file_system, path


def write_atomically(file_system: Any, path: str, contents: Iterator[bytes]) -> None:
    """Write a file, compressed if its name says so, that gets its name only when it is complete, also after a failure.
    Local file systems rename; object stores copy on their side, and show a copy when it is complete."""
    unfinished = f"{path}.tmp"
    with OpenFile(file_system, unfinished, "wb", compression=compression_of(path)) as file:
        for content in contents:
            file.write(content)
    file_system.mv(unfinished, path)


@contextmanager
def open_compressed(file_system: Any, path: str) -> Iterator[IO[bytes]]:
    """A file to read, compressed if its name says so. Raises EOFError, also in the reading, where it was cut, and
    DamagedFileError for other damage."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(OpenFile(file_system, path, compression=compression_of(path)))
        except BadZipFile as error:  # the directory of a zip stands at its end
            raise EOFError(str(error)) from None
        except (IndexError, RuntimeError) as error:  # a zip without files, or with a password
            raise DamagedFileError(str(error)) from None
        try:
            yield file
        except Exception as error:
            if not _is_of_decompressor(error):
                raise
            raise DamagedFileError(str(error)) from None


def _is_of_decompressor(error: Exception) -> bool:
    return (
        isinstance(error, (gzip.BadGzipFile, lzma.LZMAError, zlib.error, BadZipFile))
        or type(error).__name__ == "ZstdError"  # a class of a module that may be missing
        or error.args == ("Invalid data stream",)  # bz2 has no class of its own
    )


def compression_of(path: str) -> str | None:
    """The compression by a file's name (`.gz`, `.bz2`, `.xz`, `.zst` and others of fsspec); None: plain."""
    return cast(str | None, get_compression(path, "infer"))


def is_absolute(url: str) -> bool:
    """Whether the path means the same file in every working folder."""
    return "://" in url or "::" in url or Path(url).expanduser().is_absolute()
