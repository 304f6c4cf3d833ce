"""What the engine refuses or cannot do, as exceptions that carry its sentence."""

from __future__ import annotations


class VolleyError(Exception):
    """Any error of the engine. `code` is its kind, such as "INVALID_ARGUMENT"."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[VolleyError], tuple[str, str]]:
        return type(self), (str(self), self.code)


class InvalidArgumentError(VolleyError, ValueError):
    """An option, a prompt or a parameter is wrong, or two that are right do not fit together."""


class NotFoundError(VolleyError):
    """There is no such file or model."""


class ResourceExhaustedError(VolleyError):
    """There is no room: memory, queue, or context length."""


class UnimplementedError(VolleyError, NotImplementedError):
    """This build does not have what was asked for."""


class UnavailableError(VolleyError):
    """The engine is shutting down."""


class InternalError(VolleyError):
    """A damaged file or a bug of the engine."""


_CLASSES: dict[str, type[VolleyError]] = {
    "INVALID_ARGUMENT": InvalidArgumentError,
    "FAILED_PRECONDITION": InvalidArgumentError,
    "NOT_FOUND": NotFoundError,
    "RESOURCE_EXHAUSTED": ResourceExhaustedError,
    "UNIMPLEMENTED": UnimplementedError,
    "UNAVAILABLE": UnavailableError,
    "CANCELLED": UnavailableError,
    "DATA_LOSS": InternalError,
    "INTERNAL": InternalError,
}


def error_class(code: str) -> type[VolleyError]:
    """The class for an error code of the engine. The extension module asks for it."""
    return _CLASSES.get(code, InternalError)
