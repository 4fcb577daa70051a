"""Environments: classes that a policy acts in, custom or from packages.

    environment     interfaces of such a class
    played          the workflow for a class
    instance        one environment of one attempt, in a dedicated thread
    process, child  the same in a separate process, possibly of another interpreter
    methods         public methods of the class
    text, tool_use  how the policy acts: through text, or through tools
    adapters        classes for environments of packages and servers

Nothing is imported here: modules used in a process of another interpreter must not need our packages.
"""
