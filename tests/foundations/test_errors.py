"""The error tree: the classes are those of the drawing here, with their statuses and codes."""

from __future__ import annotations

import re
import unittest
from dataclasses import dataclass

from crushlite import errors
from crushlite.errors import CrushliteError

TREE = """
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
"""
# A line of the drawing: branches, a name, then what a class of that name must say of itself.
LINE = re.compile(r"^    (?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+) +(?P<rest>\S.*)$")
STATUS = re.compile(r"^(?P<status>\d{3}) (?P<code>[a-z_]+)")
EXIT = re.compile(r"\bexit (?P<exit>\d+)\b")


@dataclass
class Drawn:
    name: str
    parent: str
    status: int | None
    code: str
    exit_code: int


def drawing() -> dict[str, Drawn]:
    """The tree as drawn; a name's parent is the last name above it that is further left."""
    answer: dict[str, Drawn] = {}
    path: list[tuple[int, str]] = []
    for line in TREE.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        column, name, rest = len(match["branch"]), match["name"], match["rest"]
        while path and path[-1][0] >= column:
            path.pop()
        status, leave = STATUS.match(rest), EXIT.search(rest)
        answer[name] = Drawn(
            name=name,
            parent=path[-1][1] if path else "Exception",
            status=int(status["status"]) if status else None,
            code=status["code"] if status else "",
            exit_code=int(leave["exit"]) if leave else 1,
        )
        path.append((column, name))
    return answer


def classes() -> dict[str, type[CrushliteError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, CrushliteError)
    }


class TreeTests(unittest.TestCase):
    def test_the_drawing_names_exactly_the_classes_and_the_exports(self) -> None:
        self.assertEqual(set(drawing()), set(classes()))
        self.assertEqual({cls.__name__ for cls in errors.every_error()}, set(classes()))

    def test_each_class_hangs_where_it_is_drawn(self) -> None:
        for name, cls in classes().items():
            with self.subTest(name):
                self.assertEqual(
                    [base.__name__ for base in cls.__bases__], [drawing()[name].parent]
                )

    def test_each_class_has_the_status_and_code_it_is_drawn_with(self) -> None:
        for name, drawn in drawing().items():
            with self.subTest(name):
                cls = classes()[name]
                if drawn.status is not None:
                    self.assertEqual((cls.status, cls.code), (drawn.status, drawn.code))
                else:  # never answered on purpose: if one gets out it is our fault
                    self.assertEqual(cls.status, 500)

    def test_each_class_has_the_exit_code_it_is_drawn_with(self) -> None:
        for name, drawn in drawing().items():
            with self.subTest(name):
                self.assertEqual(classes()[name].exit_code, drawn.exit_code)

    def test_a_client_can_tell_any_two_errors_apart_by_code(self) -> None:
        codes = [cls.code for cls in classes().values()]
        self.assertEqual(len(codes), len(set(codes)))
        for code in codes:
            self.assertRegex(code, r"^[a-z]+(_[a-z]+)*$")

    def test_children_share_their_family_s_status(self) -> None:
        for cls in classes().values():
            parent = cls.__bases__[0]
            if issubclass(parent, CrushliteError) and parent is not CrushliteError:
                with self.subTest(cls.__name__):
                    self.assertEqual(cls.status, parent.status)

    def test_the_exit_codes_of_the_daemon_are_distinct(self) -> None:
        special = [cls.exit_code for cls in classes().values() if cls.exit_code != 1]
        self.assertEqual(sorted(special), [2, 3, 4, 5, 6, 9])

    def test_a_store_that_cannot_be_opened_never_answers_503(self) -> None:
        # The Crush client takes a 503 on create as "this server is leaving" and starts another.
        family = [c for c in classes().values() if issubclass(c, errors.StoreUnusable)]
        self.assertEqual({cls.status for cls in family}, {409})


class MessageTests(unittest.TestCase):
    def test_the_message_is_what_was_given(self) -> None:
        error = errors.SessionNotFound("session abc is not here")
        self.assertEqual(error.message, "session abc is not here")
        self.assertEqual(str(error), error.message)

    def test_without_a_message_the_code_is_spelt_out(self) -> None:
        self.assertEqual(errors.WorkspaceClosing().message, "workspace closing")
        for cls in classes().values():
            self.assertTrue(cls().message)

    def test_one_except_clause_catches_them_all(self) -> None:
        for cls in classes().values():
            with self.assertRaises(CrushliteError):
                raise cls("x")
