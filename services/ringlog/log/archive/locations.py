"""Locations of an archive: a folder, or a path in a store that fsspec supports (S3, SFTP, HDFS, …).

Invariants: a name exists with all of its bytes or not at all, even if the writer fails during a write. Written data is
durable.

In a folder, the data is synced as a draft and then renamed. In a store, the draft is a separate object. It is read back
and then moved to its name. In stores with a rename, the move is one step. Object stores copy the object instead, and
the copy appears only when it is complete. Readers skip drafts, because they ignore every name that is not a segment's.

fsspec's configuration and the environment of the store's library define the credentials. The displayed name of a
location contains no password.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ringlog.extras import explained
from ringlog.files import replace_durably
from ringlog.log.errors import ArchivePlaceUnknown, ArchiveUnavailable

LINE_BYTES_MAX = 1 << 16
NO_STORES = ("data", "http", "https", "libarchive", "local", "tar", "zip")
"""Protocols that fsspec can read but that cannot hold an archive, and other names for a folder."""


class ArchiveLocation(Protocol):
    """A location of an archive. ``name`` is its displayed name. Every method raises ArchiveUnavailable."""

    @property
    def name(self) -> str: ...

    def names(self) -> list[str]:
        """Return the names at the location; empty if it does not exist yet."""
        ...

    def first_line(self, name: str) -> bytes:
        """Return the first line with its end, or ``LINE_BYTES_MAX`` bytes if it is longer."""
        ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: bytes) -> None: ...


class FolderLocation:
    """A local or mounted folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        """The path of the folder."""
        return str(self.folder)

    def names(self) -> list[str]:
        """See ``ArchiveLocation.names``."""
        try:
            return [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unavailable(self.name, error) from error

    def first_line(self, name: str) -> bytes:
        """See ``ArchiveLocation.first_line``."""
        try:
            with (self.folder / name).open("rb") as file:
                return file.readline(LINE_BYTES_MAX)
        except OSError as error:
            raise _unavailable(str(self.folder / name), error) from error

    def read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise _unavailable(str(self.folder / name), error) from error

    def write(self, name: str, data: bytes) -> None:
        """Write a file durably: sync a draft, then rename it."""
        path, draft = self.folder / name, self.folder / f"{name}.{os.getpid()}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_durably(path, data, draft)
        except OSError as error:
            raise _unavailable(str(path), error) from error


class StoreLocation:
    """A path in a store. ``store`` is a file system of fsspec, ``path`` its path there."""

    def __init__(self, store: Any, path: str, place: str) -> None:
        self._store = store
        self._path = path.rstrip("/")
        self._secret = urlsplit(place).password or ""
        self._name = _without_password(place)

    @property
    def name(self) -> str:
        """The URL without a password."""
        return self._name

    def names(self) -> list[str]:
        """See ``ArchiveLocation.names``. The store's listing cache is not used."""
        try:
            self._store.invalidate_cache()
            found = self._store.ls(self._path or "/", detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._failed("", error) from error
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def first_line(self, name: str) -> bytes:
        """See ``ArchiveLocation.first_line``."""
        try:
            begin: bytes = self._store.cat_file(self._at(name), start=0, end=LINE_BYTES_MAX)
        except Exception as error:
            raise self._failed(name, error) from error
        line, end, _ = begin.partition(b"\n")
        return line + end

    def read(self, name: str) -> bytes:
        try:
            found: bytes = self._store.cat_file(self._at(name))
        except Exception as error:
            raise self._failed(name, error) from error
        return found

    def write(self, name: str, data: bytes) -> None:
        """Write an object: write a draft, read it back, then move it."""
        draft = f"{self._at(name)}.{os.getpid()}.part"
        try:
            self._store.makedirs(self._path or "/", exist_ok=True)
            self._store.pipe_file(draft, data)
            if self._store.cat_file(draft) != data:
                raise ArchiveUnavailable(
                    f"{self.name}: {name} contains other bytes than were written", "check the store"
                )
            self._store.mv(draft, self._at(name))
        except ArchiveUnavailable:
            raise
        except Exception as error:
            raise self._failed(name, error) from error
        finally:
            with suppress(Exception):  # after a successful move the draft is gone; otherwise it is ignored
                self._store.rm_file(draft)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _failed(self, name: str, error: Exception) -> ArchiveUnavailable:
        """Convert an error of the store's library, which may be of any type, without the password in its text."""
        said = f"{type(error).__name__}: {error}"
        if self._secret:
            said = said.replace(self._secret, "…").replace(unquote(self._secret), "…")
        return ArchiveUnavailable(
            f"{self.name}/{name}: {said}", "check that the store answers and that this user may write"
        )


def open_location(place: str) -> ArchiveLocation:
    """Return the location named by a path, a ``file:`` URL, or a URL of fsspec.

    Raises ArchivePlaceUnknown, ArchiveUnavailable, ExtraMissing.
    """
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", place):
        return FolderLocation(Path(place))
    try:
        url = urlsplit(place)
        netloc, shown = url.netloc, _without_password(place)
    except ValueError as error:
        raise ArchivePlaceUnknown("neither a folder nor a URL", "pass a folder or scheme://host/path") from error
    if url.query or url.fragment or "::" in place:
        raise ArchivePlaceUnknown(
            f"{shown}: a location cannot have options or a chain", "set options in the configuration of fsspec"
        )
    if url.scheme == "file":
        if netloc not in ("", "localhost"):
            raise ArchivePlaceUnknown(f"{shown} is on another machine", "mount the location, and pass the folder")
        return FolderLocation(Path(unquote(url.path)))
    if url.scheme in NO_STORES:
        raise ArchivePlaceUnknown(
            f"{shown}: {url.scheme} is not supported for an archive",
            "pass a folder or the URL of a store: s3://bucket/path",
        )
    if re.search(r"[*?\[\]]", place):
        raise ArchivePlaceUnknown(f"{shown}: * ? [ ] would match several locations", "name one")
    return _in_store(place, shown)


def _in_store(place: str, shown: str) -> StoreLocation:
    with explained():
        from fsspec.core import url_to_fs
    try:
        store, path = url_to_fs(place)
    except ImportError as error:
        raise ArchivePlaceUnknown(f"{shown}: {error}", "install the package that the message names") from error
    except (TypeError, ValueError) as error:
        raise ArchivePlaceUnknown(
            f"{shown}: {type(error).__name__}", "pass a folder, or the URL of a store that fsspec supports"
        ) from error
    except Exception as error:  # some stores connect here, and raise errors of any type
        raise ArchiveUnavailable(f"{shown}: {type(error).__name__}", "check that the store answers") from error
    return StoreLocation(store, path, place)


def _without_password(place: str) -> str:
    return re.sub(r"^(\w[\w+.-]*://[^/@:]*):[^/]*@", r"\1:…@", place)


def _unavailable(place: str, error: OSError) -> ArchiveUnavailable:
    return ArchiveUnavailable(f"{place}: {error.strerror or error}", "check that the location exists and is writable")
