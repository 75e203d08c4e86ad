"""SKILL.md files as people write them: each with its folder, and what is read from it or why it is
refused."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    folder: str
    content: str | bytes
    name: str = ""  # empty: it is refused
    description: str = ""
    warning: str = ""  # or why it is refused
    user: bool = True
    model: bool = True


BODY = "\n# How\n\nDo it.\n"

CORPUS: dict[str, Case] = {
    "plain": Case(
        "pdf", f"---\nname: pdf\ndescription: Read PDFs.\n---\n{BODY}", "pdf", "Read PDFs."
    ),
    "unquoted colon": Case(
        "deploy",
        f"---\nname: deploy\ndescription: Use when: the user says deploy, e.g. to: prod\n---{BODY}",
        "deploy",
        "Use when: the user says deploy, e.g. to: prod",
    ),
    "byte order mark": Case(
        "bom", f"\ufeff---\nname: bom\ndescription: From an editor.\n---{BODY}", "bom", "From an"
    ),
    "Windows line ends": Case(
        "crlf", "---\r\nname: crlf\r\ndescription: Two bytes.\r\n---\r\nbody\r\n", "crlf", "Two"
    ),
    "old Mac line ends": Case(
        "cr", "---\rname: cr\rdescription: One byte.\r---\rbody", "cr", "One"
    ),
    "double quotes": Case(
        "dq",
        f'---\nname: "dq"\ndescription: "Say \\"hi\\":\\tnow"\n---{BODY}',
        "dq",
        'Say "hi": now',
    ),
    "single quotes": Case(
        "sq", f"---\nname: 'sq'\ndescription: 'It''s: fine'\n---{BODY}", "sq", "It's: fine"
    ),
    "folded block": Case(
        "fold",
        f"---\nname: fold\ndescription: >-\n  One line\n  and another.\n---{BODY}",
        "fold",
        "One line and another.",
    ),
    "literal block": Case(
        "lit",
        f"---\ndescription: |\n  First: this.\n\n  Then that.\nname: lit\n---{BODY}",
        "lit",
        "First: this. Then that.",
    ),
    "plain text over several lines": Case(
        "multi",
        f"---\nname: multi\ndescription: It begins here\n  and goes on\n  to here.\n---{BODY}",
        "multi",
        "It begins here and goes on to here.",
    ),
    "text that goes on without being indented": Case(
        "flush",
        f"---\nname: flush\ndescription: It begins here\nand goes on.\nlicense: MIT\n---{BODY}",
        "flush",
        "It begins here and goes on.",
    ),
    "nested metadata": Case(
        "nested",
        "---\nname: nested\nmetadata:\n  author: kim\n  tags:\n    - a\n    - b\n"
        f"description: After a map.\n---{BODY}",
        "nested",
        "After a map.",
    ),
    "lists and comments": Case(
        "lists",
        "---\n# a comment\nname: lists # the name\nallowed-tools:\n- Bash\n- Read\n"
        f"tags: [x, y]\ndescription: Has lists. # not this\n---{BODY}",
        "lists",
        "Has lists.",
    ),
    "a hash that is no comment": Case(
        "hash",
        f"---\nname: hash\ndescription: For C#and F# code\n---{BODY}",
        "hash",
        "For C#and F#",
    ),
    "capital keys": Case(
        "caps", f"---\nName: caps\nDescription: Loud.\n---{BODY}", "caps", "Loud."
    ),
    "tabs": Case("tabs", f"---\nname:\ttabs\ndescription:\tA tab.\n---{BODY}", "tabs", "A tab."),
    "no name": Case(
        "nameless", f"---\ndescription: Nobody.\n---{BODY}", "nameless", "Nobody.", "no name"
    ),
    "another name than its folder": Case(
        "folder",
        f"---\nname: other\ndescription: Moved.\n---{BODY}",
        "other",
        "Moved.",
        "not that of",
    ),
    "a name with blanks and capitals": Case(
        "x",
        f"---\nname: My Great Skill!\ndescription: Hm.\n---{BODY}",
        "My-Great-Skill",
        "Hm.",
        "is used as My-Great-Skill",
    ),
    "a name of hyphens": Case(
        "---", f"---\nname: '---'\ndescription: Hm.\n---{BODY}", warning="its name must have"
    ),
    "a long name": Case(
        "long", f"---\nname: {'n' * 65}\ndescription: Hm.\n---{BODY}", warning="1 to 64"
    ),
    "a long description": Case(
        "wordy",
        f"---\nname: wordy\ndescription: {'w' * 3000}\n---{BODY}",
        "wordy",
        "w" * 1024,
        "cut to 1024",
    ),
    "no description": Case("mute", f"---\nname: mute\n---{BODY}", warning="it has no description"),
    "an empty description": Case(
        "empty", f'---\nname: empty\ndescription: ""\n---{BODY}', warning="it has no description"
    ),
    "no front matter": Case("bare", "# Just text\n", warning="does not begin with front matter"),
    "front matter that does not end": Case(
        "open", "---\nname: open\ndescription: Endless.\n\n# Text\n", warning="does not end"
    ),
    "no body": Case(
        "short",
        "---\nname: short\ndescription: Only this.\n---\n",
        "short",
        "Only this.",
        "no instructions",
    ),
    "not UTF-8": Case(
        "latin",
        b"---\nname: latin\ndescription: caf\xe9 au lait\n---\nbody",
        "latin",
        "caf\ufffd au",
    ),
    "an empty file": Case("nothing", "", warning="does not begin with front matter"),
    "not for users": Case(
        "inner",
        f"---\nname: inner\ndescription: For models.\nuser-invocable: false\n---{BODY}",
        "inner",
        "For models.",
        user=False,
    ),
    "not for models": Case(
        "outer",
        f"---\nname: outer\ndescription: For users.\ndisable-model-invocation: True\n---{BODY}",
        "outer",
        "For users.",
        model=False,
    ),
    "a quote that does not end": Case(
        "quote",
        f'---\nname: quote\ndescription: "so called" things\n---{BODY}',
        "quote",
        '"so called" things',
    ),
    "blank lines first": Case(
        "late", f"\n\n---\nname: late\ndescription: Begins late.\n---{BODY}", "late", "Begins late."
    ),
}
