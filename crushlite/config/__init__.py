"""The configuration of a workspace: `crush.json` files, merged, expanded, and limited in what they
may say.

Files, each stronger than the one before (missing and empty ones are skipped, a broken one is a
`ConfigError` that names file and place):

1. `/etc/crush/crush.json`
2. `$CRUSH_GLOBAL_CONFIG/crush.json`, else `$XDG_CONFIG_HOME/crush/crush.json`; then the script
   `crushrc` beside it, which is run (see `script`)
3. Crush's machine state `$XDG_DATA_HOME/crush/crush.json` (read, never written), then crushlite's
   own `$XDG_DATA_HOME/crushlite/crush.json` (scope 0)
4. `crush.json` and `.crush.json` of the project: of every folder from the root of the git work tree
   down to the workspace
5. `crush.json` in the workspace's data directory (scope 1)

1 to 3 are the *machine's* files. 4 and 5 may have come with a repository: they can tighten what the
machine's files allow. Only after `crushlite trust DIR`, and as long as they stay as they were then,
they also choose models and bring providers of their own; but they can neither allow more nor send a
key or a variable with a secret to a server of their choice. What the daemon writes to 5 at a
client's request is trusted. The rules are in `trust` (which files), `project` (what is merged) and
`expand` (which variables, and no commands).

Only the machine's files have a say in `permissions`, apart from tools that a project removes:

    allowed_tools      tools that run without asking
    project_variables  variables that trusted files of projects get although they may be secrets
    command_variables  variables that commands get although they may be secrets (`GH_TOKEN`,
                       `AWS_*`); the rule for these is in `commands.environment`

    files      finding and reading            merge      types, merging, which file says what
    project    what a project may say         expand     $V, ${V:-x}, $(command)
    catalogue  providers that need only a key providers  usable providers, large and small model
    secrets    redaction                      view       Config, and what clients see of it
    loading    ConfigFiles: all of the above  writing    changing one file
    profile    what is in force, and changes  warnings   what has no effect, and why
    options    the table of options           trust      which projects' files the user trusts
    script     running the user's crushrc     crushrc    what its calls mean
    effects    keys without an effect         hooks      the section of them, which a wing runs
    agentfiles named sub-agents of user and project
    toolservers  the section `mcp`
    wing, part, routes: how it plugs into the daemon

All but the last line is synchronous and reads files: call it in a thread.
"""
