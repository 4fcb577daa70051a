"""vLLM's server as a child process of the explorer, in a separate Python environment.

environment   finds an interpreter that has vLLM, and installs one
diagnosis     checks the installation for `trinity-db doctor`
server        starts and stops the process, and quotes its log in errors
guardian      terminates the process when the explorer dies; a separate program
checkpoints   prepares the model of a checkpoint for vLLM
inside        code imported by vLLM's workers; independent of this project
engine        sends requests, loads and checks weights, and restarts failed servers
"""
