"""What a person chooses in the editor for one session: whether tools ask, the model, the agent.

The first two are sent with the prompts of this editor and change nothing for others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..jsonrpc.errors import INVALID_PARAMS, RpcError
from ..protocol.config import SelectedModel

if TYPE_CHECKING:
    from ..protocol.config import AgentInfo

_CATEGORIES = {"mode": "mode", "model": "model", "agent": "_agent"}
MODES = {
    "ask": ("Ask", "Tools ask before they change something"),
    "auto": ("Allow everything", "Tools of this thread never ask"),
}
_DEFAULT = "default"  # the agent of the workspace
MOST_MODELS = 500


class EditorChoices:
    def __init__(self) -> None:
        self.mode = "ask"
        self._chosen = ""  # a model as PROVIDER/MODEL; empty: what is configured
        self._configured = ""
        self._names: dict[str, str] = {}  # of models, by PROVIDER/MODEL
        self._windows: dict[str, int] = {}
        self.agents: dict[str, str] = {}  # by name, if there is a choice
        self._agent = _DEFAULT

    def update(self, agent: AgentInfo, providers: list[Any]) -> None:
        """Take over the models that the daemon has now. The choice of one that it has not any more
        is dropped: what is configured holds again."""
        chosen = agent.model_cfg
        self._configured = f"{chosen.provider}/{chosen.model}" if chosen.model else ""
        self._names, self._windows = {}, {}
        for provider in providers:
            for model in _list(provider, "models")[:MOST_MODELS]:
                if isinstance(model, dict) and isinstance(model.get("id"), str):
                    value = f"{provider.get('id', '')}/{model['id']}"
                    self._names[value] = str(model.get("name") or model["id"])
                    window = model.get("context_window")
                    self._windows[value] = window if isinstance(window, int) else 0
        if self._configured and self._configured not in self._names:
            self._names[self._configured] = agent.model.name or chosen.model
        if self._configured and agent.model.context_window:
            self._windows[self._configured] = agent.model.context_window
        if self._chosen not in self._names:
            self._chosen = ""

    def update_agents(self, names: list[str], current: str) -> None:
        """Take over the agents that are configured, and which of them answers in the session."""
        self.agents = {_DEFAULT: "crushlite", **{name: name for name in names}} if names else {}
        self._agent = current or _DEFAULT

    @property
    def model(self) -> str:
        return self._chosen or self._configured

    @property
    def window(self) -> int:
        """How many tokens the model takes; 0 if that is not known."""
        return self._windows.get(self.model, 0)

    def choose(self, option: Any, value: Any) -> None:
        """Set an option. Raises RpcError."""
        if option == "mode" and isinstance(value, str) and value in MODES:
            self.mode = value
        elif option == "model" and isinstance(value, str) and value in self._names:
            self._chosen = value
        elif option in ("mode", "model", "agent"):
            raise RpcError(INVALID_PARAMS, f"{str(value)[:80]!r} is no value of {option}")
        else:
            raise RpcError(INVALID_PARAMS, f"{str(option)[:40]!r} is no option: mode, model, agent")

    def for_prompt(self) -> dict[str, Any]:
        """Fields of a prompt."""
        fields: dict[str, Any] = {}
        if self.mode == "auto":
            fields["auto_approve"] = True
        if self._chosen and self._chosen != self._configured:
            provider, _, model = self._chosen.partition("/")
            fields["models"] = {"large": SelectedModel(model, provider)}
        return fields

    def modes(self) -> dict[str, Any]:
        """For clients that know modes, but no options."""
        listed = [
            {"id": mode, "name": name, "description": about}
            for mode, (name, about) in MODES.items()
        ]
        return {"currentModeId": self.mode, "availableModes": listed}

    def options(self) -> list[dict[str, Any]]:
        modes = [
            {"value": mode, "name": name, "description": about}
            for mode, (name, about) in MODES.items()
        ]
        found = [_select("mode", "Permissions", self.mode, modes)]
        if self.model:
            models = [
                {"value": value, "name": name, "description": value}
                for value, name in self._names.items()
            ]
            found.append(_select("model", "Model", self.model, models[:MOST_MODELS]))
        if self.agents:
            agents = [{"value": value, "name": name} for value, name in self.agents.items()]
            found.append(_select("agent", "Agent", self._agent, agents))
        return found


def _select(key: str, name: str, current: str, options: list[dict[str, str]]) -> dict[str, Any]:
    if all(option["value"] != current for option in options):
        options = [{"value": current, "name": current}, *options]
    about = {"id": key, "name": name, "category": _CATEGORIES[key], "type": "select"}
    return {**about, "currentValue": current, "options": options}


def _list(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []
