"""The environment of commands: the user's, without what may be a secret.

A model decides on commands, and their output goes back to it. So a variable is left out if its name
is that of a secret, or its value is one: by its form (keys of well-known services, private keys,
addresses with a password or of a webhook), or because it repeats a known secret. The user names
exceptions in `permissions.command_variables` of their own crush.json (GH_TOKEN, AWS_*). A command
runs as the user all the same: it can read every file that the user can.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ..wing import OpenWorkspace

# The patterns are strings, compiled on first use: that takes 5 ms. Each takes time in proportion to
# the length of a text, because what it may begin with is not in what it repeats.
_NAME = (
    r"(?i)KEY|SECRET|TOKEN|PASS|CREDENTIAL|COOKIE|WEBHOOK|BEARER|PRIVATE|SIGNATURE|AUTHORIZATION"
    r"|DATABASE_UR[IL]|CONNECTION_?STR|^(?:BW|OP)_SESSION"
    r"|(?:^|[^A-Z])(?:AUTH|CREDS?|DSN|HMAC|JWT|OTP|PAT|PIN|PWD|PW|SAS|TOTP)(?:[^A-Z]|$)"
)
# Names to which the rule would apply although they hold a mere setting. An agent at SSH_AUTH_SOCK
# never gives its key away, and git over ssh needs it; the programs that ask for a password are
# needed to ask the user.
_HARMLESS = (
    r"(?i)PWD|SSH_AUTH_SOCK|(?:GIT|SSH|SUDO)_ASKPASS(?:_REQUIRE)?|KEYTIMEOUT|KEYMAP|KEYBOARD\w*"
    r"|TOKENIZERS_PARALLELISM|\w*(?:COM|BY)PASS(?:_HOME|_DIR)?"
)
# Without these hardly a command works, so no value takes them away.
_NEEDED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TMPDIR", "TZ", "LANG"),
        *("LANGUAGE", "TERM", "COLORTERM", "LS_COLORS", "DISPLAY", "WAYLAND_DISPLAY"),
        "XDG_RUNTIME_DIR",
    )
)
# How the keys of well-known services begin, and how much follows at least.
_KEY = (
    r"(?<![A-Za-z0-9])(?:sk-[\w-]{16}|[srp]k_(?:live|test)_\w{8}|gh[oprsu]_\w{8}|github_pat_\w{8}"
    r"|xox[a-z]-[\w-]{8}|xapp-[\w-]{8}|A[KS]IA[0-9A-Z]{12}|AIza[\w-]{16}|ya29\.|pypi-[\w-]{16}"
    r"|gl(?:pat|rt|dt|soat|cbt|ptt|ft|agent)-[\w-]{8}|npm_\w{16}|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4}"
    r"|SG\.[\w-]{8}|hf_\w{12}|gsk_\w{12}|xai-\w{12}|do[opr]_v1_\w{8}|shp(?:at|ca|pa|ss)_\w{8}"
    r"|sq0\w{3}-|lin_api_\w{8}|r8_\w{12}|AGE-SECRET-KEY-|tskey-\w{4}|dckr_pat_|rubygems_\w{8}"
    r"|ATATT3\w{8}|NRAK-\w{8}|sntry[su]_|whsec_\w{8}|hv[bs]\.\w{8}|pplx-\w{12}|glsa_\w{8}"
    r"|ntn_\w{12}|fio-u-|PMAK-\w{8}|key-[0-9a-f]{24}|\d{8,}:AA[\w-]{20})"
)
_PRIVATE_KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY"
# Of an address: a user with a password, or a long name in place of both, as Sentry has it.
_USERINFO = r"://(?:[^/\s?#@:]*:[^/\s?#@]+|[^/\s?#@:]{16,})@"
_QUERY = (
    r"(?i)([?&;](?:[\w-]*(?:key|token|secret|passw(?:or)?d|signature|credential)|auth|sig|code|pwd)"
    r"|\b(?:AccountKey|SharedAccessKey|SharedAccessSignature|Password|Pwd))=[^&\s;]{6}"
)
_WEBHOOK = (
    r"(?i)://(?:hooks\.|[\w.-]*webhook|discord(?:app)?\.com/api/webhooks|maker\.ifttt\.com"
    r"|outlook\.office(?:365)?\.com/webhook|chat\.googleapis\.com/v1/spaces|api\.telegram\.org/bot"
    r"|oapi\.dingtalk\.com/robot|open\.(?:feishu|larksuite)\.c\w+/open-apis/bot"
    r"|qyapi\.weixin\.qq\.com/cgi-bin/webhook|[\w.-]+/(?:api/)?webhooks?/)"
)
_FORMS = (_KEY, _PRIVATE_KEY, _USERINFO, _QUERY, _WEBHOOK)
_RUN = r"[A-Za-z0-9_+=-]{20,}"
_CONTAINED = 12  # characters from which on a variable that only contains a secret is left out too


def is_secret_name(name: str) -> bool:
    """Whether a variable, a header or a configuration key of this name holds a secret."""
    return re.search(_NAME, name) is not None and re.fullmatch(_HARMLESS, name) is None


def is_secret_value(value: str) -> bool:
    """Whether a text holds what only secrets look like."""
    return any(re.search(form, value) for form in _FORMS)


def hide_secrets(text: str, mark: str) -> str:
    """The text with a mark in place of all that only secrets look like."""
    text = re.sub(rf"{_PRIVATE_KEY}(?:[^-]*-----)?(?:[^-]*-----END[^-]*-----)?", mark, text)
    text = re.sub(rf"{_KEY}[\w.=+/-]*", mark, text)
    text = re.sub(_USERINFO, f"://{mark}@", text)
    text = re.sub(rf"{_QUERY}[^&\s;\"']*", lambda found: f"{found[1]}={mark}", text)
    return re.sub(rf"{_WEBHOOK}[^\s\"']*", f"://{mark}", text)


def looks_like_token(text: str) -> bool:
    """Whether a text holds a long run of letters and digits, as generated keys do. So do checksums:
    this alone makes no secret."""
    return any(
        any(c.isdigit() for c in run) and any(c.isalpha() for c in run)
        for run in re.findall(_RUN, text)
    )


def command_env(workspace: OpenWorkspace) -> Mapping[str, str]:
    """The environment for commands in a workspace: as its configuration says, if it has one."""
    configured = workspace.profile.command_env(workspace.env)
    return without_secrets(workspace.env) if configured is None else configured


def without_secrets(
    env: Mapping[str, str], *, secrets: Iterable[str] = (), allowed: Collection[str] = ()
) -> dict[str, str]:
    """The environment for commands. `secrets` are values that are known to be secret, whatever
    variable holds them; `allowed` are the names of variables that are kept whatever they hold, or
    the beginnings of names with a `*` at their end."""
    starts = tuple(name[:-1] for name in allowed if name.endswith("*"))
    kept = {name for name in env if name in allowed or name.startswith(starts)}
    named = {
        value
        for name, value in env.items()
        if name not in kept and is_secret_name(name) and _is_own(value)
    }
    known = {secret for secret in secrets if secret} | named
    long = [secret for secret in known if len(secret) >= _CONTAINED]
    return {
        name: value
        for name, value in env.items()
        if name in kept
        or name in _NEEDED
        or not (
            is_secret_name(name)
            or is_secret_value(value)
            or value in known
            or any(secret in value for secret in long)
        )
    }


def _is_own(value: str) -> bool:
    """Whether the value of a variable with a secret name is itself the secret, so that it is one
    under another name too. A path or a common word is not."""
    return looks_like_token(value) and not value.startswith(("/", "~", "."))
