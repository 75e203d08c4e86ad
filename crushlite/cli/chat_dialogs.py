"""What a chat asks its user on the agent's behalf: permissions and questions.

A dialog says what is asked, reads the lines that are typed as an answer, and holds the answer. It
sends nothing. An answer is a line with Enter, or one of its `keys` alone: which of both a key is,
the chat decides, because a user who is typing when the request appears must not allow anything by
accident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.questions import QuestionResponse
from .answers import ANSWERS
from .render import chosen_option, grant_words, option_lines, request_lines
from .text import count, visible

if TYPE_CHECKING:
    from ..protocol.permissions import PermissionRequest
    from ..protocol.questions import Question, QuestionBatch

WORDS = {"allow_session": "always", "allow_rule": "rule", "allow_always": "keep"}
LONG = 15  # lines of a request, after which its first one is said again
YES_NO = {"y": True, "yes": True, "n": False, "no": False}


def looks_like_answer(line: str) -> bool:
    """Whether a line is a usual answer to a dialog: a word of ANSWERS, or numbers."""
    word = line.strip().lower()
    return word in ANSWERS or word.replace(",", " ").replace(" ", "").isdecimal()


class Dialog:
    """What the user is asked. `id` is that of the request; `key` is what the notification of its
    answer names: the tool call, or the batch of questions."""

    prompt = "? "

    def __init__(self, ident: str, key: str, session_id: str) -> None:
        self.id = ident
        self.key = key
        self.session_id = session_id
        self.sent = False  # an answer was sent; the daemon will say whether it counts

    @property
    def keys(self) -> str:
        """Keys that are a whole answer each."""
        return ""

    def lines(self) -> list[str]:
        """What is asked now, and how to answer."""
        raise NotImplementedError

    def answer(self, line: str) -> list[str]:
        """Read a line that was typed; returns what is to be shown then."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether the answer is complete."""
        raise NotImplementedError


class PermissionDialog(Dialog):
    def __init__(self, request: PermissionRequest) -> None:
        super().__init__(request.id, request.tool_call_id, request.session_id)
        self.action = ""
        self.reason = ""
        self.option = ""
        self._request = request
        self._lines = request_lines(request)
        self._grants = grant_words(request)
        self._words = ["y", "n", *(WORDS[action] for action in self._grants)]
        self.prompt = f"allow? [{'/'.join(self._words)}] "

    @property
    def keys(self) -> str:
        return "yna"

    @property
    def done(self) -> bool:
        return bool(self.action)

    def lines(self) -> list[str]:
        """The whole request, however long it is: nothing is allowed that was not shown."""
        first, *rest = self._lines
        lines = [f"? {first}", *(f"  {line}" for line in rest)]
        if len(rest) > LONG:
            lines.append(f"? {first}: the {count(len(rest), 'line')} above (d: again)")
        return [
            *lines,
            "  y: yes, once   n: no   (with a blank first, ` n reason` and Enter: why not)",
            *(f"  {WORDS[action]}: {covered}" for action, covered in self._grants.items()),
            *(f"  {line}" for line in option_lines(self._request)),
        ]

    def answer(self, line: str) -> list[str]:
        word, _, rest = line.strip().partition(" ")
        if word.lower() == "d" and not rest:  # show it again
            return self.lines()
        if chosen := chosen_option(self._request, line.strip()):
            self.action, self.option = chosen
            return []
        action = ANSWERS.get(word.lower(), "")
        words = f"{', '.join(self._words[:-1])} or {self._words[-1]}"
        if not action or (rest and action != "deny"):
            return [f"please answer {words} first; /help lists what else can be done"]
        if action not in ("allow", "deny", *self._grants):
            return [f"no such rule is offered for this: please answer {words}"]
        self.action, self.reason = action, rest.strip()
        return []


class QuestionDialog(Dialog):
    """The questions of a batch one by one; the answers go out together."""

    prompt = "your answer: "

    def __init__(self, batch: QuestionBatch) -> None:
        super().__init__(batch.id, batch.id, batch.session_id)
        self.responses: list[QuestionResponse] | None = []
        self._questions = batch.questions

    @property
    def done(self) -> bool:
        return self.responses is None or len(self.responses) == len(self._questions)

    @property
    def keys(self) -> str:
        """Of a question that one key answers: y and n, or the numbers of a few choices."""
        question = self._question
        if question.type == "yes_no":
            return "yn"
        few = question.type == "single_choice" and len(question.choices) < 10
        return "".join(str(n + 1) for n in range(len(question.choices))) if few else ""

    def lines(self) -> list[str]:
        question = self._question
        number = len(self.responses or ())
        total = len(self._questions)
        mark = f"({number + 1} of {total}) " if total > 1 else ""
        lines = [f"? {mark}{visible(question.question)}"]
        if question.description:
            lines.append(f"  {visible(question.description)}")
        for index, choice in enumerate(question.choices, 1):
            more = f": {choice.description}" if choice.description else ""
            lines.append(f"  {index}  {visible(choice.label or choice.id)}{visible(more)}")
        return [*lines, f"  {self._how(question)}; /skip: no answer"]

    def answer(self, line: str) -> list[str]:
        assert self.responses is not None
        question, text = self._question, line.strip()
        response = QuestionResponse(question.id)
        if question.type == "yes_no":
            if text.lower() not in YES_NO:
                return ["please answer y or n, or /skip"]
            response.yes = YES_NO[text.lower()]
        elif question.choices and (picked := self._picked(question, text)):
            response.selected_ids = picked
        elif question.choices and text.replace(",", " ").replace(" ", "").isdecimal():
            return [f"please give a number from 1 to {len(question.choices)}"]
        else:
            response.fill_in_text = text
        self.responses.append(response)
        return [] if self.done else self.lines()

    def dismiss(self) -> None:
        """Leave all questions without an answer."""
        self.responses = None

    @property
    def _question(self) -> Question:
        return self._questions[min(len(self.responses or ()), len(self._questions) - 1)]

    def _picked(self, question: Question, text: str) -> list[str]:
        """The ids of the choices that a text names; empty if it names none."""
        words = text.replace(",", " ").split()
        if not words or not all(word.isdecimal() for word in words):
            labels = {choice.label.lower(): choice.id for choice in question.choices}
            return [labels[text.lower()]] if text.lower() in labels else []
        numbers = list(dict.fromkeys(int(word) for word in words))
        if not all(1 <= number <= len(question.choices) for number in numbers):
            return []
        if question.type == "single_choice" and len(numbers) > 1:
            return []
        return [question.choices[number - 1].id for number in numbers]

    def _how(self, question: Question) -> str:
        if question.type == "yes_no":
            return "y or n"
        if question.type == "multi_choice":
            return "numbers with blanks between them, or your own words"
        return "a number, or your own words" if question.choices else "your own words"
