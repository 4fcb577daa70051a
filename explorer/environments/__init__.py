"""Environments: classes that a policy acts in, a user's own or those of packages.

    environment     what such a class offers
    played          the workflow that is made from one
    instance        one environment of one attempt, in a thread of its own
    process, child  the same in a process of its own, also of another interpreter
    methods         the public methods of its class
    text, tool_use  how the policy acts: by texts, or by tools
    adapters        classes for environments of packages and of servers

Nothing is imported here: what a process of another interpreter imports must not need our packages.
"""
