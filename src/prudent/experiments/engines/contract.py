"""What a sweep needs of an engine, and how engines fail."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, Self

from prudent.errors import StoreError


class WorkerDied(StoreError):
    """The process of a call ended without a result, such as by ``signal 9``.

    ``deaths`` counts the processes that ended this way before the engine gave the call up.
    """

    def __init__(self, how: str, deaths: int = 1) -> None:
        super().__init__(how)
        self.deaths = deaths


class Engine(Protocol):
    """Where calls are worked on, inside a ``with`` statement."""

    @property
    def capacity(self) -> int:
        """The number of calls that can run at once."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call; its error can be :class:`WorkerDied`."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of progress that workers sent since the last call."""

    def abandon(self, future: Future[Any]) -> None:
        """End the process of one call, whose result nobody waits for any more."""

    def stop(self) -> None:
        """End all work now; what was in hand continues from checkpoints."""

    def close(self) -> None:
        """Free what the engine used."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.stop()
        self.close()
