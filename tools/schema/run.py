"""Let schemathesis try the API against its own OpenAPI document.

    python tools/schema/run.py --requests 5000 --seed 1

Installs schemathesis into a private environment (`--venv`, a temporary one if not given), starts a
daemon, and sends requests that are made from the document, good ones and bad ones, until there were
enough. There must be no 500, every status, content type and answer must be what the document says,
and the daemon must be alive at the end. Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from fuzz_target import Finding, Target  # noqa: E402

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    "response_schema_conformance",
)
PHASES = "coverage,fuzzing"
# A stream has no end, and commands would be run.
EXCLUDED = r"(/events|/shell|/mcp/servers)$"


def environment(folder: Path) -> Path:
    """The program, installed if it is not there."""
    program = folder / "bin" / "schemathesis"
    if not program.exists():
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "-r"]
        subprocess.run([*pip, str(HERE / "requirements.txt")], check=True)
    return program


def answered(target: Target) -> int:
    """How many requests the daemon has answered."""
    with target.connect() as sock:
        sock.sendall(b"GET /v1/metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = sock.makefile("rb").read().decode()
    return sum(
        int(count) for count in re.findall(r"crushlite_http_requests_total\{\S+ (\d+)", text)
    )


def run(program: Path, requests: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder, Target() as target:
        document = target.call("GET", "/v1/openapi.json")
        operations = sum(len(methods) for methods in document["paths"].values())
        schema, config = Path(folder) / "openapi.json", Path(folder) / "schemathesis.toml"
        schema.write_text(json.dumps(document))
        # Health is empty unless it is verbose, which an OpenAPI document cannot say.
        known = {"path.id": target.workspace, "path.sid": target.session, "query.verbose": "1"}
        config.write_text("[parameters]\n" + "".join(f'"{k}" = "{v}"\n' for k, v in known.items()))
        before = answered(target)
        round_, found = 0, 0
        while not found and answered(target) - before < requests:
            found = subprocess.run(
                [
                    *(str(program), "--config-file", str(config), "run", str(schema)),
                    *("--url", f"http://127.0.0.1:{target.port}"),
                    *("--header", f"Authorization: Bearer {target.token}"),
                    *("--checks", ",".join(CHECKS), "--exclude-path-regex", EXCLUDED),
                    *("--phases", PHASES, "--warnings", "off"),
                    *("--max-examples", str(max(1, requests * 2 // 3 // operations))),
                    *("--seed", str(seed + round_), "--continue-on-failure"),
                ],
                cwd=folder,
                check=False,
            ).returncode
            round_ += 1
        print(f"{answered(target) - before} requests, {operations} operations, seed {seed}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--venv", type=Path, help="where schemathesis is, or is installed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = environment(options.venv or Path(folder))
        try:
            return run(program, options.requests, options.seed)
        except Finding as finding:
            print(finding)
            return 1


if __name__ == "__main__":
    sys.exit(main())
