"""What only wings answer: its JSON as dataclasses (`wire`), and the requests of a client for it as
plain functions (`requests`). And what wings offer to agents and users (`offers`, `tools`).

    async with open_workspace("/path/to/project") as workspace:
        await requests.undo(workspace, run_id)

A daemon without the wing refuses such a request with NotFound.
"""
