"""Files that always ask, whatever was granted for the session: what is written there runs later, by
itself, or changes what the agent may do.

These are the repository's own data, settings and keys, start files of shells, editors and tools,
hooks, CI, and the instructions and settings of agents. Their names count wherever they are in the
workspace. They are compared as the least strict file system would do it: without case, compatible
characters, characters that show nothing, and dots and blanks at the end.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from ...version import NAME

if TYPE_CHECKING:
    from pathlib import PurePath

_NAMES = frozenset(
    f"""
    .{NAME} .crush crush.json .crush.json crushrc .crushrc crush.md crush.local.md
    .git .gitmodules .gitattributes .gitconfig .hg .hgrc .svn .bzr .jj .fossil
    .githooks .husky .huskyrc .lefthook lefthook.yml lefthook.yaml .lefthook.yml lefthook-local.yml
    .pre-commit-config.yaml .pre-commit-config.yml .pre-commit-hooks.yaml .overcommit.yml
    .github .gitlab .gitlab-ci.yml .gitlab-ci.yaml .circleci .buildkite .woodpecker .woodpecker.yml
    .forgejo .gitea .teamcity .builds .build.yml .drone.yml .cirrus.yml .cirrus.star .travis.yml
    appveyor.yml .appveyor.yml jenkinsfile azure-pipelines.yml azure-pipelines.yaml
    bitbucket-pipelines.yml cloudbuild.yaml cloudbuild.yml buildspec.yml buildspec.yaml
    .gitpod.yml .replit .devcontainer .devcontainer.json devcontainer.json
    .env .envrc .direnv .mise.toml mise.toml .mise .asdfrc .tool-versions
    .profile .login .logout .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .zshrc
    .zshenv .zprofile .zlogin .zlogout .kshrc .mkshrc .cshrc .tcshrc .shrc .xonshrc config.fish
    .inputrc .xinitrc .xprofile .xsession .xsessionrc .pam_environment .tmux.conf .screenrc
    .config .local .ssh .gnupg .aws .azure .kube .docker .netrc _netrc authorized_keys
    .git-credentials .vscode .idea .fleet .zed .helix .vs .nova .vim .nvim .vimrc _vimrc .gvimrc
    .nvimrc .exrc .nvim.lua .vimrc.local .lvimrc .emacs .emacs.d .dir-locals.el
    .dir-locals-2.el .nanorc .kakrc
    .npmrc .yarnrc .yarnrc.yml .yarn .pnpmfile.cjs .pnpmrc .pypirc .pip pip.conf .condarc .gemrc
    .bundle .cargo .mvn .bazelrc .sbtopts .curlrc .wgetrc .my.cnf .psqlrc .sqliterc .gdbinit
    .lldbinit .pdbrc .pythonrc .irbrc .pryrc .rprofile .juliarc.jl .terraformrc .watchmanconfig
    sitecustomize.py usercustomize.py
    agents.md agent.md agents.override.md claude.md claude.local.md gemini.md qwen.md skill.md
    .agents .claude .claude.json .codex .gemini .qwen .cursor .cursorrules .windsurf .windsurfrules
    .clinerules .roo .roorules .roomodes .kilocode .continue .aider.conf.yml .goosehints .junie
    .mcp.json mcp.json .opencode opencode.json copilot-instructions.md
    """.split()
)
_PATTERNS = re.compile(
    r"git~\d+|.*\.code-workspace|.*\.pth|\.env\..+|\.bash.*|\.zsh.*|jenkinsfile\..+"
)
# What separates names in the text of a command.
_BETWEEN = re.compile(r"[\s'\"`$;|&<>(){}\[\]=,:/\\*?#!]+")


def guarded_in(path: PurePath) -> str:
    """The first part of a path, below the workspace, that makes it one that always asks; empty if
    none does."""
    return next((part for part in path.parts if _is_guarded(part)), "")


def guarded_in_text(text: str) -> str:
    """The first name in the text of a command that is one of these; empty if none is."""
    return next((name for name in _BETWEEN.split(text) if _is_guarded(name)), "")


def _is_guarded(name: str) -> bool:
    name = unicodedata.normalize("NFKC", name)
    name = "".join(c for c in name if unicodedata.category(c) != "Cf").casefold()
    name = name.partition(":")[0].rstrip(". ")
    return name in _NAMES or _PATTERNS.fullmatch(name) is not None
