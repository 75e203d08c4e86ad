"""Models, the state of the agent, and changes of the configuration."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ..records import dataclass
from .codec import omitted

ROLES = ("large", "small")  # of the two models: one does the work, one writes titles


@dataclass(slots=True)
class Model:
    """A model as the provider catalogue describes it."""

    id: str = ""
    name: str = ""
    cost_per_1m_in: float = 0
    cost_per_1m_out: float = 0
    cost_per_1m_in_cached: float = 0
    cost_per_1m_out_cached: float = 0
    context_window: int = 0
    default_max_tokens: int = 0
    can_reason: bool = False
    reasoning_levels: list[str] = omitted(list)
    default_reasoning_effort: str = omitted()
    supports_attachments: bool = False
    options: dict[str, Any] = omitted(dict)


@dataclass(slots=True)
class SelectedModel:
    """A choice of model. Sampling fields are left out if the user set none: 0 is a choice."""

    model: str = ""
    provider: str = ""
    reasoning_effort: str = omitted()
    think: bool = omitted(False)
    max_tokens: int = omitted(0)
    temperature: float | None = omitted(None)
    top_p: float | None = omitted(None)
    top_k: int | None = omitted(None)
    frequency_penalty: float | None = omitted(None)
    presence_penalty: float | None = omitted(None)
    provider_options: dict[str, Any] = omitted(dict)


@dataclass(slots=True)
class AgentInfo:
    """Answer of `GET W/agent`. `is_busy` is true while any session of the workspace is busy.
    `no_model` says why no model answers although one was looked for."""

    is_busy: bool = False
    is_ready: bool = False
    model: Model = field(default_factory=Model)
    model_cfg: SelectedModel = field(default_factory=SelectedModel)
    no_model: str = omitted()


@dataclass(slots=True)
class AgentInit:
    interactive: bool = False  # a person can answer permission requests at this client


# Changes. `scope` says which file is written: 0 the user's, 1 the workspace's own.


@dataclass(slots=True)
class ModelChoice:
    model_type: str  # `large` or `small`
    model: SelectedModel
    scope: int = 0
