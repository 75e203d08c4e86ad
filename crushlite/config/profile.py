"""The configuration of one workspace that is in force, and how clients change it.

A client changes the configuration by writing one of two files: the user's own (scope 0) or the
workspace's (scope 1). What it asks for is checked before it is written: a file that would make the
configuration unreadable, or a model that does not exist, is refused and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, ConfigError
from ..protocol.codec import encode
from ..protocol.config import ROLES
from .factory import FollowsConfig
from .loading import Pending
from .rules import add_rule, drop_rule
from .warnings import Reason
from .writing import edited, put, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from ..agent.base import Agent, AgentFactory
    from ..features.wire import ProviderKey
    from ..protocol.config import AgentInfo, ModelChoice, SelectedModel
    from ..protocol.permissions import PermissionRule
    from .loading import ConfigFiles
    from .view import Config

# Warnings that clients show; of all others they show the keys.
_SAID = frozenset(
    {
        Reason.UNTRUSTED,
        Reason.MODEL_UNKNOWN,
        Reason.MODEL_UNLISTED,
        Reason.FILE_SKIPPED,
        Reason.TOOLS_REFUSED,
        Reason.PROVIDER_MOVED,
        Reason.PROVIDER_LEFT_OUT,
    }
)
_NAMED = 6  # keys in such a text

RECENT = 5  # models that are remembered for each role


class FileProfile:
    """Implements wing.Profile. `config` is replaced on the event loop when files have changed; the
    methods that change files are called in a thread."""

    def __init__(self, files: ConfigFiles, config: Config, agents: AgentFactory) -> None:
        self.files = files
        self.config = config
        self.data_dir = files.data_dir
        self.agents = agents
        self.followers: list[Callable[[], object]] = []  # called when `config` was replaced

    def replace(self, config: Config) -> None:
        self.config = config
        for follow in list(self.followers):
            follow()

    def make_agent(
        self, env: Mapping[str, str], models: Mapping[str, SelectedModel]
    ) -> Agent | None:
        if models and not isinstance(self.agents, FollowsConfig):
            return None
        return self.agents(self.files.workspace, env, self.config.with_models(models))

    def command_env(self, env: Mapping[str, str]) -> Mapping[str, str]:
        return self.config.command_env(env)

    def wire(self, agent: AgentInfo) -> dict[str, Any]:
        """An agent that is not one of the configured models is shown as a provider of its own. If
        it only stands in for a model that cannot be used, others can be chosen: they are shown."""
        configured = self.config.wire(self.data_dir)
        if not agent.is_ready or agent.model_cfg.provider in self.config.providers:
            return configured
        shown = self.config.wire(self.data_dir, agent)
        if isinstance(self.agents, FollowsConfig):
            shown["providers"] |= configured["providers"]
        return shown

    @property
    def warning(self) -> str:
        """What the files ask for and do not get, for the people who use the workspace, a line each:
        `crushlite doctor` says all of it."""
        parts = []
        useless: dict[Path, list[str]] = {}
        for warning in self.config.warnings:
            if warning.reason in _SAID:
                parts.append(f"{self._shown(warning.file)}: {warning.text}")
            else:
                useless.setdefault(warning.file, []).append(warning.key)
        for file, keys in useless.items():
            named = ", ".join(dict.fromkeys(keys[:_NAMED]))
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            have = "has" if len(keys) == 1 else "have"
            what = f"{named}{more} {have} no effect: `crushlite doctor` says why"
            parts.append(f"{self._shown(file)}: {what}")
        return "\n".join(parts)

    def _shown(self, file: Path) -> str:
        """A file of the project by its path in there, another one whole: most are called alike."""
        inside = file.is_relative_to(self.files.workspace)
        return str(file.relative_to(self.files.workspace) if inside else file)

    def allows(self, tool: str, action: str) -> bool:
        """Whether a tool may run without asking."""
        return not {tool, f"{tool}:{action}"}.isdisjoint(self.config.allowed_tools)

    # Changes: each returns whether it changed a file, and raises BadRequest or ConfigError --------

    def set_value(self, scope: int, key: str, value: Any) -> bool:
        return self._change(scope, lambda document: put(document, key, value))

    def remove_value(self, scope: int, key: str) -> bool:
        return self._change(scope, lambda document: take(document, key))

    def keep_rule(self, rule: PermissionRule) -> bool:
        return self._change(0, lambda document: add_rule(document, rule))

    def remove_rule(self, rule_id: str) -> bool:
        return self._change(0, lambda document: drop_rule(document, rule_id))

    def choose_model(self, wanted: ModelChoice) -> bool:
        """Write the choice of a model for a role. If a choice in the user's file would not count
        here, because this directory has one of its own, it goes to the workspace's file as well."""
        role, choice = wanted.model_type, wanted.model
        if role not in ROLES:
            raise BadRequest(f"model_type {role!r}: use large or small")
        if not choice.model or not choice.provider:
            raise BadRequest("model must name a provider and a model")
        if reason := self.why_not(choice):
            raise BadRequest(reason)

        def edit(document: dict[str, Any]) -> None:
            put(document, f"models.{role}", encode(choice))
            put(document, f"recent_models.{role}", _recent(document, wanted))

        changed = self._change(wanted.scope, edit)
        if wanted.scope == 0:
            origin = self.files.load().origin(f"models.{role}.model")
            if origin not in (None, self.files.file(0)):
                value = encode(choice)
                changed |= self._change(1, lambda own: put(own, f"models.{role}", value))
        return changed

    def why_not(self, choice: SelectedModel) -> str:
        """Why a model cannot be chosen; empty if it can be. A provider whose list is not complete
        may have any model. Without any provider nothing can be checked: the choice may be written
        before they are."""
        providers = self.config.providers
        provider = providers.get(choice.provider)
        if not providers or (provider and (provider.discover or provider.extend)):
            return ""
        if provider is None:
            every = [f"{p.id}/{model.id}" for p in providers.values() for model in p.models]
            hint = did_you_mean(f"{choice.provider}/{choice.model}", every)
            known = ", ".join(providers)
            return f"no provider {choice.provider!r} can be used, only {known}: {hint}"
        if provider.lists(choice.model):
            return ""
        hint = did_you_mean(choice.model, [model.id for model in provider.models])
        return (
            f"{provider.id} has no model {choice.model!r}: {hint} One that is not listed can "
            f"be added to providers.{provider.id}.models"
        )

    def set_key(self, wanted: ProviderKey) -> bool:
        """Write the key of a provider. A provider that the project brought gets nothing from the
        user's file, so that no project can draw a key to itself: a key that a person gives to such
        a provider goes to the workspace's file, whichever scope is asked for."""
        if not wanted.provider_id:
            raise BadRequest("provider_id must not be empty")
        values = _credentials(wanted)
        section = "providers." + wanted.provider_id.replace(".", r"\.")

        def edit(document: dict[str, Any]) -> None:
            for name, value in values.items():
                put(document, f"{section}.{name}", value)

        scope = wanted.scope
        if scope == 0:
            file = self.files.file(0)
            config = self.files.load({file: Pending(edited(file, edit), trusted=True)})
            used = config.origin(f"{section}.api_key") == file
            scope = 0 if used or wanted.provider_id not in config.providers else 1
        return self._change(scope, edit)

    def _change(self, scope: int, edit: Callable[[dict[str, Any]], None]) -> bool:
        def accept(config: Config) -> None:
            # A key that would have no effect there is refused: it would be written and forgotten.
            for warning in config.warnings if scope else ():
                ignored = warning.reason is Reason.NOT_FOR_PROJECTS
                if ignored and warning not in self.config.warnings:
                    raise ConfigError(f"{warning}; the user's own file is scope 0")

        return self.files.change(scope, edit, accept)


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """The end of a message about a model that does not exist: up to three names that may have been
    meant, or how to see all."""
    import difflib  # only here: every start would wait for it

    by_lower = {name.lower(): name for name in names}
    given = given.lower()[:200]
    close = difflib.get_close_matches(given, by_lower, 3, 0.6)
    same = [name for name in by_lower if name.rpartition("/")[2] == given.rpartition("/")[2]]
    within = [name for name in by_lower if given and given in name]
    near = [by_lower[name] for name in dict.fromkeys((*same, *close, *within))][:3]
    return f"did you mean {' or '.join(near)}?" if near else "`crushlite models` lists all."


def _recent(document: dict[str, Any], wanted: ModelChoice) -> list[dict[str, Any]]:
    """The models that were chosen last for a role, with this one as the newest."""
    newest = wanted.model.model, wanted.model.provider
    before = (document.get("recent_models") or {}).get(wanted.model_type) or []
    others = [one for one in before if (one.get("model"), one.get("provider")) != newest]
    return [encode(wanted.model), *others][:RECENT]


def _credentials(wanted: ProviderKey) -> dict[str, Any]:
    """What is written of a key, by its name in the provider's section."""
    key = wanted.api_key
    if wanted.kind == "string":
        if not isinstance(key, str):
            raise BadRequest("decode api key: a string was expected")
        return {"api_key": key}
    if wanted.kind == "oauth":
        if not isinstance(key, dict) or not isinstance(key.get("access_token"), str):
            raise BadRequest("decode api key: an object with an access_token was expected")
        return {"api_key": key["access_token"], "oauth": key}
    raise BadRequest(f'unsupported api key kind "{wanted.kind}": use string or oauth')
