"""What must hold in every simulated world, each as one small function.

Most take the ledger and one fact, and are called the moment that fact is entered; the last ones are
called when nothing goes on any more, or when a later daemon has read what an earlier one left.
Each raises Violation. streams.py has those about single events of a stream.

- What was accepted is durable, also after a power cut: `a_promise_is_stored`,
  `every_answered_prompt_is_known`, `what_was_settled_is_still_there`.
- A session has one run at a time: `runs_start_in_order_and_never_overlap`.
- A run has one ending, the same in database and streams: `only_what_was_promised_ends_and_once`,
  AT_AN_ENDING, `a_run_is_described_as_it_is`.
- No tool goes on without a grant: `a_verdict_is_what_was_answered`.
- Events are numbered without gaps, and add up to what lists show: streams.py, the lists.
- Recovery can be repeated: daemons crash while they recover, and the last one of a world finds what
  the one before it found.

Commands, parsers and secrets are not part of a simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.simulation.ledger import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.simulation.ledger import (
        Body,
        HubFacts,
        Ledger,
        Published,
        Request,
        RunFacts,
    )

SLACK = 8.0  # seconds that the slowest simulated disk may add to the end of a canceled run
OUTCOMES = ("completed", "failed", "canceled", "cleared")

# Words of the errors that the daemon may log after trouble with its store.
STORE_ERRORS = (
    "is not saved:",
    "endings are not saved, prompts are refused",
    "not saved are",
)


def require(condition: object, text: str) -> None:
    if not condition:
        raise Violation(text)


# Acceptance and start ---------------------------------------------------------------------------


def a_prompt_is_promised_once(ledger: Ledger, run: RunFacts) -> None:
    """A run_id names one run, however often its prompt is sent, in whichever life."""
    if run.is_prompt:
        others = [one for one in ledger.by_id[run.run_id] if one is not run and one.durable]
        require(not others, f"{run} was promised before")


def a_promise_is_stored(ledger: Ledger, run_id: str) -> None:
    """202 is durable: the row is committed when the answer has arrived."""
    run = ledger.run(run_id)
    if run is None:
        raise Violation(f"run {run_id} was answered 202 and is unknown")
    if not ledger.session_may_be_gone(run.session_id):
        require(ledger.row(run_id) is not None, f"{run} was answered 202 and has no row")


def only_what_was_promised_runs(ledger: Ledger, run: RunFacts | None) -> None:
    if run is None:
        raise Violation("the agent got a run that was never accepted")
    require(run.durable, f"{run} runs and was not promised")
    require(run.life == ledger.life, f"{run} of an earlier daemon runs again")
    require(run.entered_at is None, f"{run} runs twice")
    require(not run.over, f"{run} runs although it has ended")
    require(run.carrier is None, f"{run} runs although it was folded")
    require(run.hit_at is None, f"{run} started although it was canceled")
    if not ledger.session_may_be_gone(run.session_id):
        require(ledger.row(run.run_id) is not None, f"{run} runs and has no row")


def runs_start_in_order_and_never_overlap(ledger: Ledger, run: RunFacts) -> None:
    """When a run starts, everything that its session accepted before it is over and recorded.
    Cleared runs are recorded out of line."""
    line = ledger.line(run.machine, run.session_id)
    for ahead in line[: line.index(run)]:
        ended = ahead.withdrawn or ahead.recorded or ahead.cleared
        require(ended, f"{run} started before {ahead} was recorded")


# Cancel -----------------------------------------------------------------------------------------


def a_receipt_lists_what_is_live(
    ledger: Ledger, live: list[RunFacts], listed: list[RunFacts]
) -> None:
    """Everything accepted before the cancel and not ended, except what was ending otherwise."""
    for run in listed:
        require(run in live, f"{run} is in a receipt and was not live")
    for run in live:
        missing = run not in listed and not run.finished and not run.cleared
        require(not missing, f"{run} was live and is not in the receipt")


def a_cancel_that_waits_sees_the_endings(ledger: Ledger, receipt: list[str]) -> None:
    """With time enough, its answer comes when everything it hit is over."""
    for run_id in receipt:
        for run in ledger.by_id[run_id]:
            waits = run.is_prompt and run.life == ledger.life and not run.over
            require(not waits, f"a cancel has waited, and {run} has not ended")


def a_canceled_run_ends_as_such_and_in_time(
    ledger: Ledger, hub: HubFacts, run: RunFacts, body: Body
) -> None:
    cancelled = bool(body.get("cancelled"))
    if run.hit_at is not None:
        require(cancelled or run.carrier is not None, f"{run} was canceled and ended otherwise")
        late = ledger.now - run.hit_at - ledger.grace - SLACK
        require(late < 0 or ledger.troubled(60), f"{run} was canceled and ended {late:.1f} s late")
    carrier_hit = run.carrier is not None and run.carrier.hit_at is not None
    cause = run.hit_at is not None or run.cleared or carrier_hit
    require(cause or not cancelled, f"{run} was canceled and nothing canceled it")


# Endings ----------------------------------------------------------------------------------------


def only_what_was_promised_ends_and_once(ledger: Ledger, body: Body) -> None:
    run = ledger.run(body.get("run_id", ""))
    if run is None:
        raise Violation(f"a run_complete for an unknown run: {body}")
    require(run.durable, f"{run} ended and was not promised")
    require(run.completion is None, f"{run} ended twice")
    require(run.life == ledger.life, f"{run} of an earlier daemon ended again")


def an_ending_is_stored_before_it_is_published(
    ledger: Ledger, hub: HubFacts, run: RunFacts, body: Body
) -> None:
    if run.not_saved:
        require(ledger.troubled(), f"{run} is not saved and the store had no trouble")
        return
    row = ledger.row(run.run_id)
    if row is None:
        require(ledger.session_may_be_gone(run.session_id), f"{run} ended and has no row")
    else:
        require(row, f"{run} ended before its ending was committed")


def the_agent_is_gone_at_the_ending(
    ledger: Ledger, hub: HubFacts, run: RunFacts, body: Body
) -> None:
    """Unless it was given up, after the whole grace."""
    if run.entered_at is not None and not run.left:
        if run.hit_at is None:
            raise Violation(f"{run} ended while its agent was at work")
        waited = ledger.now - run.hit_at
        require(waited > ledger.grace - 0.01, f"{run} was given up after {waited:.2f} s")


def the_turn_is_closed_at_the_ending(
    ledger: Ledger, hub: HubFacts, run: RunFacts, body: Body
) -> None:
    """Its last message is finished and says what the run_complete says."""
    if not body.get("message_id"):
        require(run.cleared, f"{run} ended without a message")
        return
    message = hub.messages.get(body["message_id"])
    if message is None:
        raise Violation(f"{run} ended with a message that no stream has seen")
    finish = data_of(message, "finish")
    require(finish, f"{run} ended with an open message")
    require(text_of(message) == body.get("text", ""), f"{run} ended with another text")
    reason = finish.get("reason")
    if body.get("cancelled"):
        require(reason == "canceled", f"{run} was canceled and its message says {reason}")
    elif body.get("error") and not run.not_saved:
        require(reason == "error", f"{run} failed and its message says {reason}")
    a_history_is_acceptable(ledger, hub.of_session(run.session_id), True)
    prompts = [m for m in hub.of_session(run.session_id) if text_of(m) == run.text]
    require(len(prompts) == 1, f"the prompt of {run} is in the transcript {len(prompts)} times")


def a_rider_ends_with_its_carrier(ledger: Ledger, hub: HubFacts, run: RunFacts, body: Body) -> None:
    carrier = run.carrier
    named = body.get("folded_into", "")
    require(named == (carrier.run_id if carrier else ""), f"{run} was folded elsewhere")
    if carrier is not None:
        carried = carrier.completion
        if carried is None:
            raise Violation(f"{run} ended before its carrier")
        for key in ("message_id", "text", "cancelled"):
            require(carried.get(key) == body.get(key), f"{run} ended unlike its carrier")


def requests_are_closed_at_the_ending(
    ledger: Ledger, hub: HubFacts, run: RunFacts, body: Body
) -> None:
    for key, request in (*ledger.permissions.items(), *ledger.questions.items()):
        open_ = request.run_id == run.run_id and not request.closed
        require(not open_, f"{run} ended and left request {key} open")


AT_AN_ENDING = (
    an_ending_is_stored_before_it_is_published,
    a_canceled_run_ends_as_such_and_in_time,
    the_agent_is_gone_at_the_ending,
    the_turn_is_closed_at_the_ending,
    a_rider_ends_with_its_carrier,
    requests_are_closed_at_the_ending,
)


# Events -----------------------------------------------------------------------------------------


def no_message_event_follows_its_ending(ledger: Ledger, hub: HubFacts, event: Published) -> None:
    frozen = event.body["id"] in hub.frozen
    require(not frozen, f"a message changed after its run had ended: {event.body}")


def a_message_is_created_once(ledger: Ledger, hub: HubFacts, event: Published) -> None:
    known = event.body["id"] in hub.messages
    require(known == (event.action == "updated"), f"a message was {event.action}: {event.body}")


def a_request_is_decided_once(ledger: Ledger, key: str, request: Request) -> None:
    require(request.awaiting == 1, f"request {key} was opened {request.awaiting} times")
    require(request.closed <= 1, f"request {key} was decided {request.closed} times")


def a_verdict_is_what_was_answered(ledger: Ledger, call_id: str, granted: bool) -> None:
    """A tool goes on after its notification went out, and with the same answer. Without one it was
    allowed unasked, or the run has ended."""
    request = ledger.permissions.get(call_id)
    if request is not None:
        require(request.closed, f"call {call_id} got a verdict before its notification")
        require(granted == bool(request.granted), f"call {call_id} got another verdict")


def grant_key(request: Body) -> tuple[str, ...]:
    """What is the same in two requests of one session that one grant covers, at least."""
    return (request["session_id"], request["tool_name"], request["action"], request["path"])


def a_grant_for_the_session_is_kept(ledger: Ledger, hub: HubFacts, request: Body) -> None:
    """No request is shown to clients for what was allowed for the session before."""
    require(grant_key(request) not in hub.granted, f"was granted before: {request}")


def a_workspace_in_use_stays_open(ledger: Ledger, hub: HubFacts) -> None:
    """A workspace closes when its last claim is gone, and an open stream is a claim."""
    for stream in ledger.streams if not ledger.stopping and not ledger.muted else ():
        link, position = stream.link, stream.position
        reads = link is not None and link.open and position is not None and position.hub is hub
        gone = stream.client_id in ledger.retired
        require(gone or not reads, f"a workspace closed while {stream.name} read its events")


# Messages ---------------------------------------------------------------------------------------


def data_of(message: Body, kind: str) -> Body:
    """The data of the first part of this kind; empty if there is none."""
    parts: list[dict[str, Any]] = message.get("parts") or []
    return next((part["data"] for part in parts if part["type"] == kind), {})


def text_of(message: Body) -> str:
    return str(data_of(message, "text").get("text", ""))


def a_history_is_acceptable(ledger: Ledger, messages: Iterable[Body], whole: bool) -> None:
    """Providers refuse a history in which a tool call does not have exactly one result, right
    behind the message that made it. Unless `whole`, the last message may still wait for some."""
    open_calls: set[str] = set()
    for message in messages:
        parts = message.get("parts") or []
        if message["role"] == "tool":
            for part in parts:
                if part["type"] == "tool_result":
                    call_id = part["data"]["tool_call_id"]
                    require(call_id in open_calls, f"a result without its call: {message}")
                    open_calls.discard(call_id)
            continue
        require(not open_calls, f"a message between a call and its result: {message}")
        for part in parts:
            if part["type"] == "tool_call":
                require(part["data"]["id"] not in open_calls, f"two calls with one id: {message}")
                open_calls.add(part["data"]["id"])
    require(not whole or not open_calls, f"calls without a result: {open_calls}")


def same_message(one: Body, other: Body) -> bool:
    """`updated_at` follows the row, which an event does not wait for."""
    return {**one, "updated_at": 0} == {**other, "updated_at": 0}


# Answers ----------------------------------------------------------------------------------------


def a_list_shows_what_streams_saw(
    ledger: Ledger, seen: dict[str, Body], now: dict[str, Body], listed: list[Body]
) -> None:
    """`seen` are the messages as of the moment the request was sent, `now` those of the moment its
    answer came. Meanwhile they may have grown, been deleted, or been finished otherwise: the last
    message of a step becomes the last of its turn if nothing follows."""
    found = {message["id"]: message for message in listed}
    require(len(found) == len(listed), f"a message is listed twice: {[m['id'] for m in listed]}")
    for message_id, message in seen.items():
        shown = found.get(message_id)
        if shown is None:
            require(message_id not in now, f"a list without a message that streams had: {message}")
        elif data_of(message, "finish"):
            newest = now.get(message_id, message)
            same = same_message(shown, message) or same_message(shown, newest)
            require(same, f"{message} is listed as {shown}")
    order = [message_id for message_id in found if message_id in seen]
    expected = [message_id for message_id in seen if message_id in found]
    require(order == expected, f"listed as {order}, streamed as {expected}")


def what_was_settled_is_still_there(
    ledger: Ledger, settled: dict[str, Body], listed: list[Body]
) -> None:
    """Messages of turns that had ended when the request was sent, in this life or an earlier one,
    are as their streams saw them."""
    found = {message["id"]: message for message in listed}
    for message_id, message in settled.items():
        shown = found.get(message_id)
        if shown is None:
            raise Violation(f"a message of an ended turn is gone: {message}")
        require(same_message(shown, message), f"{message} has become {shown}")


def only_what_was_not_promised_is_unknown(ledger: Ledger, run: RunFacts | None) -> None:
    promised = run is not None and run.durable
    if run is not None and not ledger.session_may_be_gone(run.session_id):
        require(not promised, f"{run} was promised and is not found")


def a_run_is_described_as_it_is(ledger: Ledger, info: Body, ended_before: bool) -> None:
    """`ended_before`: its run_complete was out when the request was sent."""
    run = ledger.run(info["run_id"])
    if info["kind"] != "prompt" or run is None:
        return
    require(info["session_id"] == run.session_id, f"{run} is listed in another session")
    if run.life == ledger.life and ended_before:
        require(info["state"] == "ended", f"{run} has ended and is {info['state']}")
    if info["state"] == "ended":
        require(info["outcome"] in OUTCOMES, f"{run} ended without an outcome: {info}")
        over = run.completion is not None or run.life < ledger.life
        require(over, f"{run} is called ended before its run_complete")
        _an_outcome_is_what_was_published(run, info)
    else:
        require(not info["outcome"], f"{run} has an outcome before it has ended: {info}")
        require(run.durable or info["state"] in ("accepted", "queued"), f"{run} is {info}")


def _an_outcome_is_what_was_published(run: RunFacts, info: Body) -> None:
    body = run.completion
    if body is None or run.not_saved:
        return  # interrupted by a crash, or announced as not saved
    expected: tuple[str, ...] = ("failed",) if body.get("error") else ("completed",)
    if body.get("cancelled"):
        expected = ("canceled", "cleared")
    require(info["outcome"] in expected, f"{run} ended with {body} and is recorded as {info}")
    for key in ("message_id", "error", "folded_into"):
        require(info[key] == body.get(key, ""), f"{run}: {key} of {info} is not that of {body}")


def no_error_is_logged_but_the_expected(ledger: Ledger, text: str) -> None:
    stubborn = [run for run in ledger.runs.values() if run.run_id in text and not run.left]
    expected = (
        (ledger.troubled(60) and any(words in text for words in STORE_ERRORS))
        or ("the agent ignored its cancellation" in text and stubborn)
        or "has no title of its agent (ValueError" in text
    )
    require(expected, text)


# At the end -------------------------------------------------------------------------------------


def nothing_is_open(ledger: Ledger) -> None:
    """When nothing goes on any more: every promise is kept and every request decided."""
    for run in ledger.runs.values():
        if run.is_prompt and run.durable and run.life == ledger.life:
            require(run.completion is not None, f"{run} was promised and has not ended")
            require(run.recorded or run.not_saved, f"the ending of {run} was never recorded")
    for key, request in (*ledger.permissions.items(), *ledger.questions.items()):
        asker = ledger.run(request.run_id)
        if asker is not None and asker.life == ledger.life:
            require(request.closed == request.awaiting, f"request {key} is open at rest")


def every_answered_prompt_is_known(ledger: Ledger, infos: list[Body]) -> None:
    """What was answered 202, in any life, is recorded with an outcome; the client's own view."""
    found = {info["run_id"]: info for info in infos}
    for prompt in ledger.prompts.values():
        if not prompt.promised or ledger.session_may_be_gone(prompt.session_id):
            continue
        info = found.get(prompt.run_id)
        if info is None:
            raise Violation(f"{prompt.text} was answered 202 and is not in W/runs")
        require(info["state"] == "ended", f"{prompt.text} has not ended: {info}")


def a_prompt_is_in_the_history_once(
    ledger: Ledger, session_id: str, infos: list[Body], listed: list[Body]
) -> None:
    """What a person typed is never lost, unless it was cleared; nor is it doubled."""
    texts = [text_of(message) for message in listed if message["role"] == "user"]
    for info in infos:
        run = ledger.run(info["run_id"])
        if run is None or info["session_id"] != session_id or info["kind"] != "prompt":
            continue
        expected = 0 if info["outcome"] == "cleared" else 1
        count = texts.count(run.text or "")
        require(count == expected, f"the prompt of {run} ({info}) is listed {count} times")


def what_is_listed_is_what_streams_saw(ledger: Ledger, hub: HubFacts, listed: list[Body]) -> None:
    """At rest, for every message that this opening of the workspace has shown."""
    for message in listed:
        streamed = hub.messages.get(message["id"])
        if streamed is not None:
            require(same_message(message, streamed), f"{streamed} is listed as {message}")
            require(data_of(message, "finish"), f"open at rest: {message}")
