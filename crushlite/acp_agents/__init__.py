"""Agents of other makers, behind `Turn`: programs that speak the Agent Client Protocol (ACP) on
standard input and output.

    command       which program, as a person writes it
    process       the program while it runs: its connection, what it offers, its end
    conversation  a session of ours and the agent's session behind it: resumed, loaded or new
    exchange      one turn: a prompt, what comes back, and how it is cancelled
    updates       what the agent reports, as calls of a Turn
    asking        its permission requests, with the options it offers
    content       prompts, tool content and transcripts as ACP has them, and back
    agent         one agent of one workspace
    part, wing    which agent answers in which session; routes
"""
