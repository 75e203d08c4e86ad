"""What commands see of the environment: all that a build needs, and no secret."""

from __future__ import annotations

import subprocess
import sys
import unittest
from typing import Any

from crushlite.commands.environment import hide_secrets, is_secret_value, without_secrets
from crushlite.shell.wing import ShellWing
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.places import ROOT

# Secrets by their name, whatever the value is.
BY_NAME = dict.fromkeys(
    (
        *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        *("AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS"),
        *("CLOUDSDK_AUTH_ACCESS_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CONNECTION_STRING"),
        *("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "GITHUB_TOKEN", "GH_PAT", "GITLAB_PAT"),
        *("NPM_TOKEN", "NPM_CONFIG__AUTH", "DOCKER_AUTH_CONFIG", "PYPI_PASSWORD", "MYSQL_PWD"),
        *("PGPASSWORD", "PGPASSFILE", "DB_PASS", "DATABASE_URL", "TEST_DATABASE_URL", "SENTRY_DSN"),
        *("SLACK_WEBHOOK", "DISCORD_WEBHOOK_URL", "SESSION_COOKIE", "COOKIES", "JWT", "MY_JWT"),
        *("DJANGO_SECRET", "RAILS_MASTER_KEY", "SSH_PRIVATE", "GPG_PASSPHRASE", "VAULT_TOKEN"),
        *("BW_SESSION", "OP_SESSION_my", "HTTP_AUTHORIZATION", "DB_CREDS", "my_password", "OTP"),
        *("BASIC_AUTH", "SIGNATURE_V4", "DEPLOY_PIN", "X_BEARER", "SQLALCHEMY_DATABASE_URI"),
    ),
    "v-4711",
)
# Secrets by their value, under names that say nothing.
BY_VALUE = {
    f"PLAIN_{number}": value
    for number, value in enumerate(
        (
            "sk-proj-abcdefghijklmnop1234",
            "sk-ant-api03-abcdefghijklmnop",
            "sk_live_abcdefgh12345678",
            "ghp_abcdefghijklmnop1234567890",
            "gho_abcdefghijklmnop1234567890",
            "github_pat_11ABCDEFG0abcdefgh",
            "xoxb-123456789012-abcdefghij",
            "xapp-1-A0123-abcdefgh",
            "AKIAIOSFODNN7EXAMPLE",
            "ASIAIOSFODNN7EXAMPLE",
            "AIzaSyA1234567890abcdefghijklmnopqrstuvw",
            "ya29.a0AfH6SMBx",
            "glpat-abcdefghij1234567890",
            "npm_abcdefghijklmnopqrstuvwxyz0123456789",
            "pypi-AgEIcHlwaS5vcmcCJDAwMDAw",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
            "SG.abcdefghijklmnop.qrstuvwxyz",
            "hf_abcdefghijklmnopqrst",
            "gsk_abcdefghijklmnopqrst",
            "dop_v1_abcdef0123456789",
            "shpat_abcdef0123456789",
            "AGE-SECRET-KEY-1QQQQQQQ",
            "dckr_pat_abcdefghijkl",
            "hvs.CAESIabcdefgh",
            "ATATT3xFfGF0abcdefgh",
            "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END",
            "-----BEGIN PRIVATE KEY-----",
            "postgres://kim:hunter2@db.example/app",
            "redis://:hunter2@cache:6379/0",
            "http://kim:hunter2@proxy.example:3128",
            "first,amqps://kim:hunter2@mq/vhost",
            "https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/1",
            "https://hooks.slack.com/services/T0/B0/xyz",
            "https://discord.com/api/webhooks/1/abc",
            "https://acme.webhook.office.com/webhookb2/x",
            "https://api.telegram.org/bot1/send",
            "https://maker.ifttt.com/trigger/x/with/y",
            "https://gw.example/v1?api_key=abcdef0123",
            "https://acct.blob.core.windows.net/c?sv=2020&sig=abcdefgh",
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=abcdefgh==",
            "Server=db;User Id=sa;Password=hunter22;",
            "-H 'X-Api: ghp_abcdefghijklmnop1234567890'",
        )
    )
}
KEPT = {
    "PATH": "/usr/bin:/opt/sk-abcdefghijklmnopqrstuv/bin",
    "HOME": "/home/kim",
    "USER": "kim",
    "SSH_AUTH_SOCK": "/run/user/1000/agent.1",
    "GIT_ASKPASS": "/usr/lib/ask",
    "PWD": "/x",
    "OLDPWD": "/y",
    "TERM": "xterm-256color",
    "LANG": "de_DE.UTF-8",
    "LC_ALL": "C",
    "TZ": "UTC",
    "LS_COLORS": "rs=0:di=01;34:*.key=01;36:*.sig=00;90",
    "EDITOR": "vi",
    "SHLVL": "2",
    "XDG_SESSION_ID": "3",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus",
    "DISPLAY": ":0",
    "XAUTHORITY": "/run/x",
    "GIT_AUTHOR_NAME": "Kim",
    "GOPATH": "/go",
    "PAGER": "less",
    "KEYTIMEOUT": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PGUSER": "postgres",
    "CI": "true",
    "GIT_COMMIT": "0123456789abcdef0123456789abcdef01234567",
    "VIRTUAL_ENV": "/v/task-env",
    "HTTP_PROXY": "http://proxy.example:3128",
    "REMOTE": "ssh://git@github.com/a/b.git",
    "AWS_PROFILE": "dev",
    "AWS_REGION": "eu-west-1",
    "KUBECONFIG": "/home/kim/.kube/config",
    "DOCS": "https://docs.example/?page=2&lang=de",
    "NIX_PATH": "/nix/store/0abc123def456ghi7",
    "COMPASS": "north",
    "AUTHOR": "Kim",
    "PATTERN": "*.py",
    "PINGS": "3",
    "HOURS": "8",
}


class EnvironmentTests(unittest.TestCase):
    def test_no_secret_is_left_by_name_or_by_value(self) -> None:
        self.assertGreaterEqual(min(len(BY_NAME), len(BY_VALUE)), 40)
        for secrets in (BY_NAME, BY_VALUE):
            self.assertEqual(without_secrets(secrets | KEPT), KEPT)

    def test_a_secret_under_another_name_goes_too(self) -> None:
        env = {"NPM_TOKEN": "0a1b2c3d4e5f6a7b8c9d0e1f", "COPY": "0a1b2c3d4e5f6a7b8c9d0e1f"}
        env |= {"FLAGS": "--with 0a1b2c3d4e5f6a7b8c9d0e1f", "SECRETS_DIR": "/home/kim/a1b2c3d4e5f6"}
        kept = {"OTHER": "/home/kim/a1b2c3d4e5f6/b", "KNOWN_2": "short"}
        self.assertEqual(without_secrets(env | kept), kept)
        known = {"known-key", "short-word"}
        env = {"A": "known-key", "B": "short-word", "C": "x-short-word-y"}
        self.assertEqual(without_secrets(env, secrets=known), {"C": "x-short-word-y"})

    def test_the_user_names_exceptions(self) -> None:
        env = BY_NAME | BY_VALUE
        allowed = ["NPM_TOKEN", "PLAIN_0"]
        left = without_secrets(env, secrets=["v-4711"], allowed=allowed)
        self.assertEqual(sorted(left), sorted(allowed))

    def test_the_user_names_exceptions_by_their_beginning(self) -> None:
        env = {"AWS_SECRET_ACCESS_KEY": "a", "AWS_SESSION_TOKEN": "b", "MY_AWS_TOKEN": "c"}
        left = without_secrets(env | {"AWS": "://u:p@h/"}, allowed=["AWS_*", "M*_TOKEN"])
        self.assertEqual(sorted(left), ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])

    def test_long_values_take_no_long_time(self) -> None:
        pieces = ("://", "a", "eyJ_", ":", "-----BEGIN ", "?a", "&key", "://a.", "0", "sk-")
        for text in (first + piece * 10_000 for piece in pieces for first in ("?", "://", "eyJ")):
            is_secret_value(text)
            hide_secrets(text, "-")


class CommandTests(BoundedTestCase):
    async def test_commands_of_agents_and_of_people_get_none(self) -> None:
        seen: list[str] = []

        async def agent(turn: Any) -> None:
            self.assertEqual(turn.env["GH_PAT"], "v-4711")  # an agent is the user's own program
            command = await turn.command(["env", "-0"])
            await command.wait()
            seen.append(command.output.text())
            await turn.say("done")

        for wings in (None, [ShellWing()]):  # with a configuration, and with none
            async with LocalDaemon(agent, wings=wings) as daemon:
                env = BY_NAME | BY_VALUE | KEPT | {"PATH": "/usr/bin:/bin"}
                anna = await daemon.join(env=[f"{name}={value}" for name, value in env.items()])
                session = await anna.session()
                await anna.prompt(session)
                await anna.events.wait_for("run_complete")
                body = {"command": "env -0"}
                answer = await anna.call("POST", f"/agent/sessions/{session}/shell", body)
                seen.append(answer.json["output"])
        self.assertEqual(len(seen), 4)
        for output in seen:
            names = {entry.partition("=")[0] for entry in output.split("\0")}
            self.assertLessEqual(set(KEPT) - {"OLDPWD"}, names)  # a shell sets that one itself
            self.assertEqual(names & (set(BY_NAME) | set(BY_VALUE)), set())


class DumpableTests(unittest.TestCase):
    def test_a_daemon_cannot_be_read_by_other_processes_and_its_children_can(self) -> None:
        if sys.platform != "linux":
            return  # others have no such thing
        look = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)"
        script = f"""
import subprocess, sys
from unittest import mock
from crushlite.cli import main

def run(daemon, greet):
    {look}
    subprocess.run([sys.executable, "-c", {look!r}], check=True)

with mock.patch("crushlite.daemon.Daemon.run", run):
    main(["serve", "--agent", "offline", "--host", "unix:///tmp/never-bound.sock"])
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=True,
            text=True,
        )
        self.assertEqual(done.stdout.split(), ["0", "1"], done.stderr)
