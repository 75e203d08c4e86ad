"""Every error crushlite raises on purpose, as one tree.

A leaf carries the HTTP status and the stable `code` it is answered with, so that the route
functions never translate anything and a client can branch on `code` without reading prose.

    CrushliteError                     500 internal
    ├── BadRequest                     400 bad_request      the caller must change the request
    │   ├── ConfigError                400 bad_config       a configuration file cannot be used
    │   └── NoAgent                    400 no_agent         exit 9
    ├── NotFound                       404 not_found
    │   ├── WorkspaceNotFound          404 workspace_not_found   clients re-register on this one
    │   ├── SessionNotFound            404 session_not_found
    │   ├── RunNotFound                404 run_not_found
    │   └── RequestNotFound            404 request_not_found     (a permission or a question)
    ├── Conflict                       409 conflict
    │   ├── WorkspaceClosing           409 workspace_closing
    │   ├── ClientRetired              409 client_retired
    │   ├── NotAttached                409 not_attached     not 404: 404 means "workspace gone"
    │   ├── ChannelMismatch            409 channel_mismatch
    │   ├── RunIdReused                409 run_id_reused
    │   ├── SessionBusy                409 session_busy
    │   ├── NotQueued                  409 not_queued
    │   ├── ServerInUse                409 server_in_use
    │   └── StoreUnusable              409 store_unusable   never 503: see ShuttingDown
    │       ├── CorruptDatabase        409 corrupt_database     exit 4
    │       ├── NewerSchema            409 newer_schema         exit 5
    │       └── DataDirectoryInUse     409 data_directory_in_use exit 6
    ├── Unavailable                    503 unavailable
    │   ├── ShuttingDown               503 shutting_down    the Crush client then spawns a server
    │   ├── StoreOverloaded            503 store_overloaded
    │   ├── StoreBusy                  503 store_busy
    │   └── StoreFailed                503 store_failed     an I/O error; it may pass
    ├── StoreFull                      507 store_full
    │   └── NotSaved                   507 not_saved        the endings of earlier runs wait
    ├── ProviderFailed                 502 provider_failed
    ├── UsageError                     (no status) exit 2   bad flags, refused bind
    ├── WrongPeer                      (no status) exit 3   the other end is another user
    ├── TurnOver                       (no status) an agent called a Turn that has ended
    ├── LimitReached                   (no status) a limit of a run: steps, cost, time, tokens
    ├── PromptRefused                  (no status) a hook does not let a prompt be answered
    └── IllegalCall                    (no status) a bug in the caller of a state machine

Foreign errors are translated at the edge of the layer that meets them: h11's never leave `http/`,
sqlite3's never leave `store/`.
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
    code = "workspace_not_found"


class SessionNotFound(NotFound):
    code = "session_not_found"


class RunNotFound(NotFound):
    code = "run_not_found"


class RequestNotFound(NotFound):
    code = "request_not_found"


class Conflict(CrushliteError):
    status = 409
    code = "conflict"


class WorkspaceClosing(Conflict):
    code = "workspace_closing"


class ClientRetired(Conflict):
    code = "client_retired"


class NotAttached(Conflict):
    code = "not_attached"


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
    """The database of a data directory cannot be used at all; the file is left as it is."""

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
    code = "shutting_down"


class StoreOverloaded(Unavailable):
    code = "store_overloaded"


class StoreBusy(Unavailable):
    code = "store_busy"


class StoreFailed(Unavailable):
    """The database cannot be reached: an I/O error, a file that was removed, a closed store."""

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


class UsageError(CrushliteError):
    code = "usage"
    exit_code = 2


class WrongPeer(CrushliteError):
    code = "wrong_peer"
    exit_code = 3


class TurnOver(CrushliteError):
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
    code = "illegal_call"


def every_error() -> list[type[CrushliteError]]:
    """The classes of this module, the base first."""
    return [
        value
        for value in globals().values()
        if isinstance(value, type) and issubclass(value, CrushliteError)
    ]
