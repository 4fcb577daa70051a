"""vLLM's server as a child process of the explorer, in an environment of its own.

environment   finds an interpreter that has vLLM, and makes an environment with one
diagnosis     says whether that works
server        starts the process, and ends it with its log in the error
guardian      ends the process when the explorer dies; a program of its own
checkpoints   shows vLLM the model in a checkpoint, and nothing else
inside        what vLLM's workers import; it knows nothing of this project
engine        sends requests, changes weights, checks them, and mends what dies
"""
