"""Skills (folders with a SKILL.md) and commands (Markdown files), of the user and of the project.

    skill       one SKILL.md
    command     one command file, and what its arguments are
    walking     finding the files
    catalogue   all of them at one moment
    configured  where they are by the configuration, and which of a project's are trusted
    part        those of one workspace
    tool        the tool by which a model reads a skill
    prompts     the prompts of tool servers, as commands
    wing        routes

What a project brings is used only after `crushlite trust`, file by file, as long as its content
stays the same: a skill instructs the model, and a command is sent as the user's own words.
"""
