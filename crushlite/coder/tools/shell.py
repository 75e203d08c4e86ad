"""bash, job_output and job_kill: commands in the foreground and in the background.

A command that only reads, as safe.py decides, runs at once; every other one asks for
permission. A command in the foreground is waited for. After `auto_background_after` seconds it goes
on as a job of the session, whose id the model gets; if there are too many jobs, or the model has
set more than the time limit, it is killed at the limit. When the tool call is cancelled, the
command is killed at once, not only at the end of the run.

A command that fails gives a result that is an error, and begins with its exit code: so every client
shows it as failed, and the model cannot overlook it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...agent.base import JobInfo
from ...clock import wait_at_most
from ...errors import BadRequest, Conflict
from ...worktree.paths import locate
from .arguments import flag, number, plain, schema, text
from .base import ToolOutcome, denied, failure
from .safe import Surroundings, environment, harmless_words
from .scope import command_scope

if TYPE_CHECKING:
    from ...agent.base import Exit, RunningCommand, Verdict
    from ...clock import Clock, Timer
    from ...worktree.paths import Place
    from .base import ToolUse

TIMEOUT = 120.0
PROGRESS_SECONDS = 0.1
PROGRESS_BYTES = 4000
BACKGROUND_AFTER = 60
COMMAND_BYTES = 64 * 1024  # more could not be read before it is allowed
QUICK_SECONDS = 1.0  # a command for the background that ends so soon has mostly failed to start
WAIT_SECONDS = 60  # of job_output
NAMES = 20  # of variables that were taken away, told when a command fails
# Programs that would wait for somebody at a terminal do not: an editor leaves the text as it is, a
# pager prints, git asks for no password.
NO_TERMINAL = {
    **dict.fromkeys(("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"), "true"),
    **dict.fromkeys(("PAGER", "GIT_PAGER", "MANPAGER"), "cat"),
    "GIT_TERMINAL_PROMPT": "0",
}


class Bash:
    name = "bash"
    description = (
        "Run a shell command (bash, without a terminal, standard input closed, no editor or pager) "
        "and get its output. Each call begins in the project's root: cd does not last. One that "
        f"still runs after {BACKGROUND_AFTER} seconds goes on as a background job; start servers "
        "with run_in_background. To look at the project use view, ls, glob and grep: they need no "
        "permission."
    )
    parameters = schema(
        {
            "command": {"type": "string", "description": "The command"},
            "description": {
                "type": "string",
                "description": "What it does, in a few words, for the user",
            },
            "working_dir": {
                "type": "string",
                "description": "Folder to run it in; the project's root if absent",
            },
            "run_in_background": {
                "type": "boolean",
                "description": "Do not wait for it: returns a shell_id for job_output and job_kill",
            },
            "auto_background_after": {
                "type": "integer",
                "description": f"Seconds after which it goes on in the background, "
                f"{BACKGROUND_AFTER} if absent. With {TIMEOUT:g} or more it does not, and is "
                f"killed after {TIMEOUT:g} seconds",
            },
        },
        "command",
        "description",
    )
    read_only = False

    def __init__(self, clock: Clock, *, timeout: float = TIMEOUT) -> None:
        self._clock = clock
        self._timeout = timeout

    async def run(self, call: ToolUse) -> ToolOutcome:
        wanted = await _WantedCommand.of(call, self._clock)
        words = await call.context.blocking(wanted.harmless_words)
        if words is None:
            verdict = await wanted.permission()
            if not verdict:
                return denied(verdict.reason)
        began = self._clock.now()
        command = await (wanted.start() if words is None else wanted.start_harmless(words))
        try:
            job_id, ended = await self._wait(call, command, wanted)
        except BaseException:
            command.kill()
            raise
        finally:
            wanted.progress.stop()
        output = command.output.text()
        metadata: dict[str, Any] = {
            "start_time": int(began * 1000),
            "end_time": int(self._clock.now() * 1000),
            "output": output,
            "description": wanted.description,
            "working_directory": str(wanted.place.path),
            "background": bool(job_id),
        }
        failed = False
        if ended is None:
            metadata |= {"shell_id": job_id, "command": wanted.command}
            content = _in_background(job_id, output)
        else:
            ending = _ending(ended, self._timeout)
            failed = bool(ending)
            if failed:
                metadata |= {"exit_code": ended.code, "output": _with_ending(output, ending)}
            content = _after_ending(output, ending)
            content += _removed_variables(call, words is None) if failed else ""
        content += f"\n\n<cwd>{wanted.place.path}</cwd>"
        return ToolOutcome(content, is_error=failed, metadata=json.dumps(metadata))

    async def _wait(
        self, call: ToolUse, command: RunningCommand, wanted: _WantedCommand
    ) -> tuple[str, Exit | None]:
        """Wait for a command. Return the id of the job that it has become and None, or an empty id
        and how it ended."""
        done = command.done
        if wanted.background:
            if await wait_at_most(self._clock, done, QUICK_SECONDS):
                return "", done.result()
            return call.turn.keep(command, wanted.info), None
        left = self._timeout
        if wanted.foreground_seconds < self._timeout:
            if await wait_at_most(self._clock, done, wanted.foreground_seconds):
                return "", done.result()
            try:
                return call.turn.keep(command, wanted.info), None
            except Conflict:  # there are too many jobs: wait for the rest of its time
                left -= wanted.foreground_seconds
        if await wait_at_most(self._clock, done, left):
            return "", done.result()
        return "", await command.wait(0)


class _WantedCommand:
    """The command that the model wants to run. Raises BadRequest for one that cannot be run."""

    def __init__(self, call: ToolUse, place: Place, clock: Clock) -> None:
        self._call = call
        self.place = place
        self.progress = _Progress(call, clock)
        self.command = text(call, "command")
        self.description = text(call, "description", required=False)
        self.background = flag(call.input.get("run_in_background"), "run_in_background")
        self._after = number(call, "auto_background_after", 0)
        self.foreground_seconds = self._after or BACKGROUND_AFTER
        if not self.command.strip() or "\0" in self.command:
            raise BadRequest("command must not be empty or contain NUL")
        if len(self.command.encode("utf-8")) > COMMAND_BYTES:
            raise BadRequest(f"command is longer than {COMMAND_BYTES} bytes: write it to a file")

    @classmethod
    async def of(cls, call: ToolUse, clock: Clock) -> _WantedCommand:
        folder = text(call, "working_dir", required=False) or "."
        place = await call.context.blocking(locate, call.context.path, folder)
        return cls(call, place, clock)

    @property
    def info(self) -> JobInfo:
        return JobInfo(self.command, self.description, str(self.place.path))

    async def permission(self) -> Verdict:
        call, place = self._call, self.place
        # A folder outside must be in the description: it is part of what the user allows.
        where = "" if place.inside else f" (outside the project, in {place.path})"
        scope = await call.context.blocking(command_scope, self.command, place, call.context.path)
        return await call.turn.permission(
            call.name,
            "execute",
            description=f"Execute command: {self.command}{where}",
            params={
                "description": self.description,
                "command": self.command,
                "working_dir": str(place.path) if place.path != call.context.path else "",
                "run_in_background": self.background,
                "auto_background_after": self._after,
            },
            path=str(place.path),
            tool_call_id=call.id,
            scope=scope,
        )

    async def start(self) -> RunningCommand:
        """Raises BadRequest if the folder has been moved or replaced since it was located."""
        call = self._call
        again = await call.context.blocking(locate, call.context.path, str(self.place.path))
        if again != self.place:
            raise BadRequest(f"{self.place.shown} changed while permission was asked: try again")
        self.progress.command = await call.turn.command(
            self.command,
            cwd=str(self.place.path),
            env={**call.context.env, **NO_TERMINAL},
            on_output=self.progress.on_output,
        )
        return self.progress.command

    def harmless_words(self) -> list[str] | None:
        """The argument list of a command that needs no permission; None for any other."""
        if not self.place.inside or self.background:
            return None
        context = self._call.context
        search = context.env.get("PATH", "")
        at = Surroundings(self.place.path, context.path, context.own, search)
        return harmless_words(self.command, at)

    async def start_harmless(self, words: list[str]) -> RunningCommand:
        turn = self._call.turn
        return await turn.command(words, cwd="/", env=environment(), read_only=True)


class _Progress:
    """Shows the end of a running command's output, at most every PROGRESS_SECONDS."""

    def __init__(self, call: ToolUse, clock: Clock) -> None:
        self.command: RunningCommand | None = None
        self._call = call
        self._clock = clock
        self._timer: Timer | None = None
        self._over = False

    def stop(self) -> None:
        """Show no more: the command has ended, or goes on as a job."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def on_output(self, data: bytes) -> None:
        if self._timer is None and not self._over:
            self._timer = self._clock.call_later(PROGRESS_SECONDS, self._show)

    def _show(self) -> None:
        self._timer = None
        if self.command is not None:
            self._call.turn.progress(self._call.id, self.command.output.text(PROGRESS_BYTES))


def _shown(info: JobInfo) -> dict[str, Any]:
    """What clients show of a command, beside its output."""
    return {
        "command": info.command,
        "description": info.description,
        "working_directory": info.folder,
    }


def _in_background(job_id: str, output: str) -> str:
    note = f"It runs in the background as job {job_id}: use job_output and job_kill with shell_id "
    note += f'"{job_id}".'
    return "\n".join(part for part in (output.rstrip("\n"), note) if part)


def _ending(ended: Exit, timeout: float | None = None) -> str:
    """How a command ended; empty if it ended well."""
    if ended.timed_out:
        after = f" after {timeout:g} seconds" if timeout is not None else ""
        advice = "if it needs longer, set run_in_background"
        return f"Exit code {ended.code}: the command was killed{after}, {advice}"
    if ended.canceled:
        return f"Exit code {ended.code}: the command was killed"
    return f"Exit code {ended.code}" if ended.code else ""


def _with_ending(output: str, ending: str) -> str:
    """The output as clients show it: its end is what they show first."""
    return "\n".join([output.rstrip("\n"), ending]).strip("\n") if ending else output


def _after_ending(output: str, ending: str) -> str:
    """The output as the model gets it: how a command has failed stands first."""
    lines = [line for line in (ending, output.rstrip("\n")) if line]
    if "bytes left out ..." in output:
        lines.append("(the middle of the output is left out: narrow it with grep, head or tail)")
    return "\n".join(lines) or "(no output)"


def _removed_variables(call: ToolUse, whole: bool) -> str:
    """The names of the variables that the command did not get because they may be secrets: it may
    have failed for want of one. With `whole` the command had the environment of commands."""
    names = sorted(name for name in call.turn.env.keys() - call.context.env.keys() if name)
    if not whole or not names:
        return ""
    shown = ", ".join(name[:100] for name in names[:NAMES] if name.isprintable())
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return (
        f"\n(Not set for commands, as they may hold secrets: {shown}{more}. If the command needs "
        "one, tell the user to name it in permissions.command_variables of their own crush.json.)"
    )


# Jobs -------------------------------------------------------------------------------------------

_JOB = {"shell_id": {"type": "string", "description": "The id of the job, as bash gave it"}}


def _job_id(call: ToolUse) -> str:
    """The id of a job. Models often write it as a number, or call it job_id."""
    key = "shell_id" if call.input.get("shell_id") is not None else "job_id"
    value = call.input.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return plain(value, "shell_id")


def wait_seconds(value: object) -> float:
    """How long job_output is to wait. Raises BadRequest unless it is a boolean or a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(min(max(value, 0), WAIT_SECONDS))
    return float(WAIT_SECONDS) if flag(value, "wait") else 0.0


class JobOutputTool:
    name = "job_output"
    description = (
        "The output so far of a background job, and whether it has ended. With wait it answers at "
        f"the end of the job, or after {WAIT_SECONDS} seconds: do not ask again and again."
    )
    parameters = schema(
        {**_JOB, "wait": {"type": "boolean", "description": "Wait for the end of the job"}},
        "shell_id",
    )
    read_only = False  # a job that has ended is removed when its output is read

    async def run(self, call: ToolUse) -> ToolOutcome:
        job_id, seconds = _job_id(call), wait_seconds(call.input.get("wait"))
        if seconds:
            await call.turn.wait_for_job(job_id, seconds)
        info, found = call.turn.job_info(job_id), call.turn.job_output(job_id)
        ending = "" if found.exit is None else _ending(found.exit)
        metadata: dict[str, Any] = {
            "shell_id": job_id,
            **_shown(info),
            "done": found.done,
            "output": _with_ending(found.text, ending),
        }
        if found.exit is None:
            state = f"Job {job_id} is still running."
            if not seconds:
                state += " To wait for its end, set wait."
            content = "\n".join(part for part in (found.text.rstrip("\n"), state) if part)
        else:
            metadata["exit_code"] = found.exit.code
            content = f"{_after_ending(found.text, ending)}\nJob {job_id} has ended."
        return ToolOutcome(content, is_error=bool(ending), metadata=json.dumps(metadata))


class JobKill:
    name = "job_kill"
    description = "End a background job, with everything it started. Its output stays readable."
    parameters = schema(_JOB, "shell_id")
    read_only = False

    async def run(self, call: ToolUse) -> ToolOutcome:
        job_id = _job_id(call)
        info = call.turn.job_info(job_id)
        ended = await call.turn.kill_job(job_id)
        if ended is not None and ended.survivors:
            return failure(f"job {job_id}: {ended.survivors} processes could not be killed")
        metadata = {"shell_id": job_id, **_shown(info), "done": True}
        return ToolOutcome(f"Job {job_id} was killed.", metadata=json.dumps(metadata))
