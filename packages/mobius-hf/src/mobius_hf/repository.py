"""Model name -> `Repository`: the files of a local folder, or of a hub repository at one commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from mobius.sources import SourceOptions
from mobius_hf.downloads import Downloads, fetch
from mobius_hf.errors import HubError, ModelNotFoundError

CONFIG = "config.json"
GGUF_SUFFIX = ".gguf"
FIRST_PART = "-00001-of-"
_SHOWN = 12
_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


class Repository(Protocol):
    """Where the files of a model are."""

    @property
    def name(self) -> str:
        """Folder or hub id, as the user gave it."""
        ...

    @property
    def revision(self) -> str | None:
        """The commit, or `None` for a folder."""
        ...

    @property
    def where(self) -> str:
        """What to call it at the start of a sentence."""
        ...

    def names(self) -> frozenset[str]:
        """Return the names of its files (top folder only)."""
        ...

    def path(self, file: str) -> Path:
        """Return where `file` is on disk, fetching it if need be."""
        ...

    def paths(self, files: Sequence[str]) -> dict[str, Path]:
        """Return where each of `files` is on disk, fetching several at a time if need be."""
        ...


def open_repository(model: str, options: SourceOptions) -> Repository:
    """Return the folder `model` if it exists, the hub repository of that id otherwise.

    A folder never touches the network.

    Raises:
        ModelNotFoundError: if there is no such folder, repository, revision or file.
        HubError: if the hub refuses or cannot be reached.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return Folder(model, folder)
    if folder.is_file():
        raise ModelNotFoundError(
            f"{model} is a file; needed: the folder that holds {CONFIG} and the weights, or a "
            f"{GGUF_SUFFIX} file."
        )
    if model.casefold().endswith((GGUF_SUFFIX, ".onnx", ".safetensors")):
        raise ModelNotFoundError(
            f"The file {model} does not exist. Give an existing file, or one on the hub as "
            f"owner/name/file{GGUF_SUFFIX}."
        )
    if looks_like_a_path(model):
        raise ModelNotFoundError(
            f"The folder {model} does not exist. Give an existing folder, or a hub id such as "
            "'HuggingFaceTB/SmolLM2-135M-Instruct'."
        )
    return Hub(model, options)


def looks_like_a_path(model: str) -> bool:
    """Return whether `model` can only be a path, no hub id."""
    # A hub id is `name` or `owner/name`: letters, digits, '-', '_' and '.' only.
    return model.startswith((".", "/", "~")) or "\\" in model or model.count("/") > 1


class Folder:
    """The files of a local folder."""

    revision: str | None = None

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder

    @property
    def where(self) -> str:
        """The folder."""
        return f"The folder {self.folder}"

    def names(self) -> frozenset[str]:
        """Return the names of the folder's files."""
        return frozenset(entry.name for entry in self.folder.iterdir() if entry.is_file())

    def path(self, file: str) -> Path:
        """Return the path of `file`."""
        path = self.folder / file
        if not path.is_file():
            found = ", ".join(sorted(self.names())) or "no files"
            raise ModelNotFoundError(f"{self.where} has no {file}; it has: {found}.")
        return path

    def paths(self, files: Sequence[str]) -> dict[str, Path]:
        """Return the path of each of `files`."""
        return {file: self.path(file) for file in files}


class Hub:
    """The files of a hub repository, at the commit that its first file came from.

    Args:
        name: The repository, as `owner/name` or `name`.
        options: Revision, access and cache.
        first: The file that is fetched before all others.

    Raises:
        ModelNotFoundError: if there is no such repository, revision or file.
        HubError: if the hub refuses or cannot be reached.
    """

    def __init__(self, name: str, options: SourceOptions, first: str = CONFIG) -> None:
        import huggingface_hub

        self.name = name
        self.revision = options.revision
        self._options = options
        self._offline = options.offline or huggingface_hub.is_offline_mode()
        progress = options.progress
        self._bar = None if progress is None else Downloads(progress).bar()
        self._listed: frozenset[str] | None = None
        self._snapshot = self._first(first).parents[first.count("/")]
        # The hub library keeps files in `snapshots/<commit>/`. From here on every file is asked
        # for at that commit, so that a push in between cannot mix two versions.
        if self._snapshot.parent.name == "snapshots":
            self.revision = self._snapshot.name

    @property
    def where(self) -> str:
        """The repository and its revision."""
        at = f" at {self.revision}" if self.revision else ""
        return f"The {'cached ' if self._offline else ''}hub repository {self.name}{at}"

    def names(self) -> frozenset[str]:
        """Return the names of the repository's files; offline, of those in the cache."""
        if self._listed is None and not self._offline:
            self._listed = self._list()
        if self._listed is not None:
            return frozenset(name for name in self._listed if "/" not in name)
        return frozenset(entry.name for entry in self._snapshot.iterdir() if entry.is_file())

    def paths(self, files: Sequence[str]) -> dict[str, Path]:
        """Return the path of each of `files`, downloading several at a time unless offline."""
        return fetch(files, self.path)

    def path(self, file: str) -> Path:
        """Return the path of `file` in the cache, downloading it unless offline."""
        import huggingface_hub

        def download() -> str:
            return str(
                huggingface_hub.hf_hub_download(
                    self.name,
                    file,
                    revision=self.revision,
                    token=self._options.token,
                    cache_dir=self._options.cache_dir,
                    local_files_only=self._offline,
                    tqdm_class=self._bar,
                )
            )

        return Path(self._explained(download, file))

    def _first(self, file: str) -> Path:
        """Return the path of `file`; where there is none, the error names what there is."""
        from huggingface_hub import errors

        try:
            return self.path(file)
        except ModelNotFoundError as error:
            cause = error.__cause__
            offline = isinstance(cause, errors.LocalEntryNotFoundError)
            if offline or not isinstance(cause, errors.EntryNotFoundError):
                raise
            try:
                self._listed = self._list()
            except (HubError, ModelNotFoundError):
                raise error from cause  # the list is for its message alone
            raise ModelNotFoundError(f"{error}{gguf_hint(self.name, self._listed)}") from cause

    def _list(self) -> frozenset[str] | None:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError

        def list_files() -> list[str]:
            return huggingface_hub.list_repo_files(
                self.name, revision=self.revision, token=self._options.token
            )

        try:
            return frozenset(self._explained(list_files, "the list of files"))
        except HubError as error:
            if isinstance(error.__cause__, HfHubHTTPError):
                raise
            # Downloads fall back to the cache when the hub cannot be reached; so does the list.
            _logger.warning("%s Going on with the files in the cache.", error)
            return None

    def _explained(self, call: Callable[[], _Result], what: str) -> _Result:
        from huggingface_hub import errors

        revision = self.revision or "main"
        try:
            return call()
        except errors.HFValidationError as error:
            raise ModelNotFoundError(
                f"{self.name!r} is neither an existing folder nor a valid hub id: {error}"
            ) from error
        except errors.GatedRepoError as error:
            raise HubError(
                f"Access to the hub repository {self.name} is restricted. Accept its terms on the "
                "hub, then pass token=... or log in with: hf auth login"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise ModelNotFoundError(
                f"The hub repository {self.name} has no revision {revision!r}. Give an existing "
                "branch, tag or commit."
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise ModelNotFoundError(
                f"{self.name!r} is neither an existing folder nor a hub repository that you can "
                "see. Check the spelling; a private repository needs token=... or: hf auth login"
            ) from error
        except errors.LocalEntryNotFoundError as error:
            if self._offline:
                raise ModelNotFoundError(
                    f"Offline, and {what} of {self.name} at {revision} is not in the cache (there "
                    f"is no folder {self.name} either). Download it once with the network on."
                ) from error
            raise HubError(
                f"There is no folder {self.name} here. The hub cannot be reached, and {what} of "
                f"{self.name} at {revision} is not in the cache: {error}"
            ) from error
        except errors.EntryNotFoundError as error:
            raise ModelNotFoundError(
                f"The hub repository {self.name} at {revision} has no {what}."
            ) from error
        except _transport_errors() as error:
            raise HubError(
                f"The hub failed to give {what} of {self.name} at {revision}: {error}"
            ) from error


def gguf_hint(name: str, files: Collection[str] | None) -> str:
    """Return how to name the GGUF files among `files` of a repository; nothing if there are none.

    Of a model in several parts, the first stands for all.
    """
    found = sorted(
        file
        for file in files or ()
        if file.casefold().endswith(GGUF_SUFFIX) and (FIRST_PART in file or "-of-" not in file)
    )
    if not found:
        return ""
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f" It has models in GGUF: {', '.join(found[:_SHOWN])}{more}. Name one of them: "
        f"{name}/{found[0]}"
    )


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return what a request may raise: `OSError`, and the base error of the hub's HTTP library.

    Which library that is depends on the version of huggingface_hub.
    """
    from huggingface_hub.errors import HfHubHTTPError

    bases = HfHubHTTPError.__bases__
    return (OSError, *(base for base in bases if issubclass(base, Exception)))
