"""Where models lie, as for `volley serve`: the pocket pair, folders, and names in the local Hugging Face cache."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from . import _engine
from ._errors import NotFoundError

_POCKET = Path(__file__).parent / "share" / "volley" / "models"
_HUB_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Located:
    folder: str
    name: str  #: on the hub, if it is known, else the folder's


def cache_home() -> Path | None:
    """XDG_CACHE_HOME, else ~/.cache. None: this user has no home."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    except RuntimeError:
        return None


def _hub_cache() -> Path | None:
    """Where Hugging Face's tools keep what they download."""
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"])
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]) / "hub"
    home = cache_home()
    return home and home / "huggingface" / "hub"


def _in_cache(hub_name: str, cache: Path | None) -> Path | None:
    """The folder of the revision main."""
    if cache is None:
        return None
    model = cache / ("models--" + hub_name.replace("/", "--"))
    try:
        commit = (model / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = model / "snapshots" / commit
    return snapshot if commit and "/" not in commit and snapshot.is_dir() else None


def _folder_name(folder: Path) -> str:
    model = folder.absolute().parent.parent.name
    if folder.absolute().parent.name == "snapshots" and model.startswith("models--"):
        return model.removeprefix("models--").replace("--", "/", 1)
    return folder.name


def _locate(asked: str | Path, option: str, cache: Path | None) -> Located:
    """A folder, which comes first, or a name on the hub."""
    text = str(asked)
    if isinstance(asked, Path) or not _HUB_NAME.fullmatch(text) or Path(text).exists():
        return Located(text, _folder_name(Path(text)))
    folder = _in_cache(text, cache)
    if folder is not None:
        return Located(str(folder), text)
    raise NotFoundError(
        f"There is no folder {text}, and no such model in {cache or 'a Hugging Face cache'}: "
        f"get it with hf download {text}, or name a folder with {option}=….",
        "NOT_FOUND",
    )


def _known_drafter(target: Located, cache: Path | None) -> Located:
    name = _engine.known_drafter(target.name)
    if name is None:
        raise NotFoundError(f"draft='auto' knows no drafter for {target.name}: name one, or leave it out.", "NOT_FOUND")
    return _locate(name, "draft", cache)


def locate(
    model: str | Path | None, draft: str | Path | None, cache: Path | None = None
) -> tuple[Located, list[Located]]:
    """Target and drafters: the pocket pair without a `model`; `draft`: "auto" for the one that is known, "mtp", "none",
    or two with a comma between.

    `cache`: where names are looked up; None: where Hugging Face's tools keep what they download.
    """
    cache = cache or _hub_cache()
    target = _locate(_POCKET / "pocket" if model is None else model, "model", cache)
    if draft == "none" or (model is not None and not draft):
        return target, []
    if model is None and draft in (None, "", "auto"):
        draft = _POCKET / "pocket-dflash"
    names: list[str | Path] = [*draft.split(",")] if isinstance(draft, str) else [draft or ""]
    if len(names) > 2 or (len(names) > 1 and "none" in names):
        raise ValueError(f"draft={draft!r} must name a drafter, two with a comma between, or none")

    def located(name: str | Path) -> Located:
        if name == "mtp":
            return target
        return _known_drafter(target, cache) if name == "auto" else _locate(name, "draft", cache)

    return target, [located(name) for name in names]
