"""The graphs.

A module that defines `build` and `graph` is a technique: its wiring, and no other code. The other modules serve every
technique: `wiring` runs nodes in LangGraph, `registry` finds a technique by name, and `chat`, `reviewed` and `tool` put
it into a conversation, before a person, and into an agent.
"""
