"""Where an archive's segments lie: a folder, or a place in a store that fsspec knows (S3, SFTP, HDFS, …).

What a place promises: a name is there with all of its bytes, or not at all, also when the writer dies in between; what
is written is there to stay. In a folder a draft is renamed when it is on the disk. A store is given the draft as an
object of its own, which is moved to its name when it was read back whole: where the store renames, that is one step;
where it does not, as object stores, it copies the object by itself, and a copy appears when it is whole. Drafts are
nobody's: readers pass over every name that is no segment's.

Who may read and write there is fsspec's matter: its configuration, and what the store's own library reads from the
environment. What is shown of a place holds no password.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ringlog.files import replace_durably
from ringlog.log.errors import ArchivePlaceUnknown, ArchiveUnavailable

LINE_BYTES_MAX = 1 << 16
NO_STORES = ("data", "http", "https", "libarchive", "local", "tar", "zip")
"""What fsspec can read, and cannot keep: pages, archives as files; and another name for a folder."""


class ArchivePlace(Protocol):
    """One place; ``name``: as it may be shown. Every method raises ArchiveUnavailable."""

    @property
    def name(self) -> str: ...

    def names(self) -> list[str]:
        """What is there; a place that is not there yet is empty."""
        ...

    def first_line(self, name: str) -> bytes:
        """With its end, if that comes within ``LINE_BYTES_MAX``."""
        ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: bytes) -> None: ...


class FolderPlace:
    """A folder, mounted or of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.folder)

    def names(self) -> list[str]:
        """See ``ArchivePlace``; so are the others."""
        try:
            return [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unavailable(self.name, error) from error

    def first_line(self, name: str) -> bytes:
        """See ``ArchivePlace``."""
        try:
            with (self.folder / name).open("rb") as file:
                return file.readline(LINE_BYTES_MAX)
        except OSError as error:
            raise _unavailable(str(self.folder / name), error) from error

    def read(self, name: str) -> bytes:
        """See ``ArchivePlace``."""
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise _unavailable(str(self.folder / name), error) from error

    def write(self, name: str, data: bytes) -> None:
        """See ``ArchivePlace``."""
        path, draft = self.folder / name, self.folder / f"{name}.{os.getpid()}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_durably(path, data, draft)
        except OSError as error:
            raise _unavailable(str(path), error) from error


class StorePlace:
    """A place in a store of fsspec's. ``store``: one of its file systems; ``path``: as that names it."""

    def __init__(self, store: Any, path: str, place: str) -> None:
        self._store = store
        self._path = path.rstrip("/")
        self._secret = urlsplit(place).password or ""
        self._name = _without_password(place)

    @property
    def name(self) -> str:
        """Its URL without a password."""
        return self._name

    def names(self) -> list[str]:
        """See ``ArchivePlace``; nothing that was listed before is remembered."""
        try:
            self._store.invalidate_cache()
            found = self._store.ls(self._path or "/", detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._failed("", error) from error
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def first_line(self, name: str) -> bytes:
        """See ``ArchivePlace``."""
        try:
            begin: bytes = self._store.cat_file(self._at(name), start=0, end=LINE_BYTES_MAX)
        except Exception as error:
            raise self._failed(name, error) from error
        line, end, _ = begin.partition(b"\n")
        return line + end

    def read(self, name: str) -> bytes:
        """See ``ArchivePlace``."""
        try:
            found: bytes = self._store.cat_file(self._at(name))
        except Exception as error:
            raise self._failed(name, error) from error
        return found

    def write(self, name: str, data: bytes) -> None:
        """See ``ArchivePlace``."""
        draft = f"{self._at(name)}.{os.getpid()}.part"
        try:
            self._store.makedirs(self._path or "/", exist_ok=True)
            self._store.pipe_file(draft, data)
            if self._store.cat_file(draft) != data:
                raise ArchiveUnavailable(f"{self.name}: {name} was written, and is another", "look at the store")
            self._store.mv(draft, self._at(name))
        except ArchiveUnavailable:
            raise
        except Exception as error:
            raise self._failed(name, error) from error
        finally:
            with suppress(Exception):  # it is gone, or it is nobody's
                self._store.rm_file(draft)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _failed(self, name: str, error: Exception) -> ArchiveUnavailable:
        """The errors of a store are those of its library: of any kind."""
        said = f"{type(error).__name__}: {error}"
        if self._secret:
            said = said.replace(self._secret, "…").replace(unquote(self._secret), "…")
        return ArchiveUnavailable(f"{self.name}/{name}: {said}", "does the store answer, and may this user write?")


def place_of(place: str) -> ArchivePlace:
    """What a path, a ``file:`` URL, or a URL of fsspec's names. Raises ArchivePlaceUnknown, ArchiveUnavailable."""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", place):
        return FolderPlace(Path(place))
    try:
        url = urlsplit(place)
        netloc, shown = url.netloc, _without_password(place)
    except ValueError as error:
        raise ArchivePlaceUnknown("neither a folder nor a URL", "the place is scheme://host/path") from error
    if url.query or url.fragment or "::" in place:
        raise ArchivePlaceUnknown(f"{shown}: a place has no options, no chain", "give them by fsspec's configuration")
    if url.scheme == "file":
        if netloc not in ("", "localhost"):
            raise ArchivePlaceUnknown(f"{shown} is of another machine", "mount the place, and name the folder")
        return FolderPlace(Path(unquote(url.path)))
    if url.scheme in NO_STORES:
        raise ArchivePlaceUnknown(f"{shown}: {url.scheme} keeps no archive", "a folder, or a store: s3://bucket/path")
    if re.search(r"[*?\[\]]", place):
        raise ArchivePlaceUnknown(f"{shown}: * ? [ ] mean several places", "name one")
    return _in_store(place, shown)


def _in_store(place: str, shown: str) -> StorePlace:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ArchivePlaceUnknown(
            f"{shown}: archives outside of folders need fsspec",
            "pip install 'ringlog[archive]'",
        ) from error
    try:
        store, path = url_to_fs(place)
    except ImportError as error:
        raise ArchivePlaceUnknown(f"{shown}: {error}", "install what it names beside Ringlog") from error
    except (TypeError, ValueError) as error:
        raise ArchivePlaceUnknown(
            f"{shown}: {type(error).__name__}", "a folder, or a URL of a store that fsspec knows"
        ) from error
    except Exception as error:  # some connect at once, and their errors are of any kind
        raise ArchiveUnavailable(f"{shown}: {type(error).__name__}", "does the store answer?") from error
    return StorePlace(store, path, place)


def _without_password(place: str) -> str:
    return re.sub(r"^(\w[\w+.-]*://[^/@:]*):[^/]*@", r"\1:…@", place)


def _unavailable(place: str, error: OSError) -> ArchiveUnavailable:
    return ArchiveUnavailable(f"{place}: {error.strerror or error}", "is the place there, and writable?")
