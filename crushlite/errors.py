"""Every error that crushlite raises on purpose, as one tree.

A class has the HTTP status and the stable `code` it is answered with, so that route functions
translate nothing and a client can branch on `code` without reading prose. `exit_code` is that of a
command it ends. Foreign errors are translated at the edge of the layer that meets them: h11's never
leave `http/`, sqlite3's never leave `store/`.
"""

from __future__ import annotations


class CrushliteError(Exception):
    """Base of the tree. `message` is written for the person or program that caused it."""

    status = 500
    code = "internal"
    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.code.replace("_", " "))

    @property
    def message(self) -> str:
        return str(self)


class BadRequest(CrushliteError):
    """The caller must change the request."""

    status = 400
    code = "bad_request"


class ConfigError(BadRequest):
    """A configuration file cannot be used; the message names the file and the place in it, and
    never a value: values may be keys."""

    code = "bad_config"


class NoAgent(BadRequest):
    """The workspace has no usable agent; the message says what to configure."""

    code = "no_agent"
    exit_code = 9


class NotFound(CrushliteError):
    status = 404
    code = "not_found"


class WorkspaceNotFound(NotFound):
    code = "workspace_not_found"  # clients re-register on this one


class SessionNotFound(NotFound):
    code = "session_not_found"


class RunNotFound(NotFound):
    code = "run_not_found"


class RequestNotFound(NotFound):
    code = "request_not_found"  # a permission or a question


class Conflict(CrushliteError):
    status = 409
    code = "conflict"


class WorkspaceClosing(Conflict):
    code = "workspace_closing"


class ClientRetired(Conflict):
    code = "client_retired"


class NotAttached(Conflict):
    code = "not_attached"  # not a NotFound: for clients that means "workspace gone"


class ChannelMismatch(Conflict):
    code = "channel_mismatch"


class RunIdReused(Conflict):
    code = "run_id_reused"


class SessionBusy(Conflict):
    code = "session_busy"


class NotQueued(Conflict):
    code = "not_queued"


class ServerInUse(Conflict):
    code = "server_in_use"


class StoreUnusable(Conflict):
    """The database cannot be used at all, and is left as it is. Never 503: see ShuttingDown."""

    code = "store_unusable"


class CorruptDatabase(StoreUnusable):
    code = "corrupt_database"
    exit_code = 4


class NewerSchema(StoreUnusable):
    code = "newer_schema"
    exit_code = 5


class DataDirectoryInUse(StoreUnusable):
    code = "data_directory_in_use"
    exit_code = 6


class Unavailable(CrushliteError):
    status = 503
    code = "unavailable"


class ShuttingDown(Unavailable):
    code = "shutting_down"  # on a create, the Crush client then starts a server


class StoreOverloaded(Unavailable):
    code = "store_overloaded"


class StoreBusy(Unavailable):
    code = "store_busy"


class StoreFailed(Unavailable):
    """The database cannot be reached: an I/O error, a removed file, a closed store. May pass."""

    code = "store_failed"


class StoreFull(CrushliteError):
    status = 507
    code = "store_full"


class NotSaved(StoreFull):
    """An earlier run has ended and the store has not written it yet: nothing new till then."""

    code = "not_saved"


class ProviderFailed(CrushliteError):
    status = 502
    code = "provider_failed"


# What follows is never answered on purpose, and has no status of its own.


class UsageError(CrushliteError):
    """Bad flags, a bind that was refused."""

    code = "usage"
    exit_code = 2


class WrongPeer(CrushliteError):
    """The other end of a socket is another user's."""

    code = "wrong_peer"
    exit_code = 3


class TurnOver(CrushliteError):
    """An agent called a Turn that has ended."""

    code = "turn_over"


class LimitReached(CrushliteError):
    """A run is stopped. `limit` says by what: cost, steps, time or tokens; empty if not known."""

    code = "limit_reached"

    def __init__(self, message: str = "", limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class PromptRefused(CrushliteError):
    """A wing does not let the agent answer a prompt; the message says why."""

    code = "prompt_refused"


class IllegalCall(CrushliteError):
    """A bug in the caller of a state machine."""

    code = "illegal_call"


def every_error() -> list[type[CrushliteError]]:
    """The classes of this module, the base first."""
    classes = [value for value in globals().values() if isinstance(value, type)]
    return [cls for cls in classes if issubclass(cls, CrushliteError)]
