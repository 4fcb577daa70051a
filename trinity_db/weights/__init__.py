"""Transfer of policy versions between machines without a shared disk: object store or broadcast.

bucket        reads, writes, lists and deletes objects; translates errors
manifest      the parts of a version in the store
delta         differences between two files, and their application
daemon_threads  several requests at a time
fetching      makes a folder's files from objects
broadcast     sends versions to several explorers at once, and receives them
gloo_process  the process at either end of a broadcast
cache         the versions that this machine has fetched

The objects of a run have a common prefix, made of the run's name and its store:

    PLACE/my-run-1a2b3c4d/run.json                            their owner
    PLACE/my-run-1a2b3c4d/version-000012-5e6f7a8b/files/...   the files of a version, in parts
    PLACE/my-run-1a2b3c4d/version-000012-5e6f7a8b/manifest.json   written last; else it is incomplete
    PLACE/my-run-1a2b3c4d/checkpoint-000012-9a8b7c6d/...      a checkpoint, in the same way
"""
