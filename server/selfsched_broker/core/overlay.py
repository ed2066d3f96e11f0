"""A mapping laid over another: reads see through, writes and deletions stay on top."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

V = TypeVar("V")
_GONE: Any = object()
_UNSEEN: Any = object()


class Overlay(MutableMapping[str, V]):
    """Looks like `under` with changes; `under` is never written and must not change meanwhile."""

    __slots__ = ("_added", "_over", "_under")

    def __init__(self, under: MutableMapping[str, V]) -> None:
        self._under = under
        self._over: dict[str, V] = {}
        self._added = 0
        """Keys here less keys below."""

    def __getitem__(self, key: str) -> V:
        if key in self._over:
            value = self._over[key]
            if value is _GONE:
                raise KeyError(key)
            return value
        return self._under[key]

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict's; without the exception by which a mapping's own tells that there is nothing."""
        value = self._over.get(key, _UNSEEN)
        if value is _UNSEEN:
            return self._under.get(key, default)
        return default if value is _GONE else value

    def __setitem__(self, key: str, value: V) -> None:
        self._added += key not in self
        self._over[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._added -= 1
        self._over[key] = _GONE

    def __iter__(self) -> Iterator[str]:
        if not self._over:
            yield from self._under
            return
        yield from (key for key in self._under if self._over.get(key) is not _GONE)
        yield from (k for k, v in self._over.items() if v is not _GONE and k not in self._under)

    def __len__(self) -> int:
        return len(self._under) + self._added

    def __contains__(self, key: object) -> bool:
        if key in self._over:
            return self._over[key] is not _GONE
        return key in self._under
