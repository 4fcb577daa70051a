"""Weights of policy versions for machines that share no disk: by an object store, or by broadcast.

bucket        puts, gets, lists and deletes objects; says what failed in our words
manifest      what a version in the store is made of
delta         what changed between two files, and how to apply it
at_once       several requests at a time
fetching      makes a folder's files of objects
broadcast     sends versions to several explorers at once, and receives them
gloo_process  the process at either end of a broadcast
cache         the versions that this machine has fetched

The objects of a run lie under one name, which says the run and its store:

    PLACE/my-run-1a2b3c4d/run.json                            whose they are
    PLACE/my-run-1a2b3c4d/version-000012-5e6f7a8b/files/...   the files of a version, in parts
    PLACE/my-run-1a2b3c4d/version-000012-5e6f7a8b/manifest.json   written last: without it there is no version
    PLACE/my-run-1a2b3c4d/checkpoint-000012-9a8b7c6d/...      a checkpoint, in the same way
"""
