#!/bin/bash
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append
#
# Run a role under a scheduler that restarts failed jobs: role.sh explore my-run.yaml
#
# trinity-db exits with 0 when its run is finished, and also when a signal stops it. A scheduler must distinguish these:
# a role stopped by SIGTERM exits with 143 here, after finishing its current work and releasing its leases.
# A role stopped by `trinity-db stop RUN` exits with 0, since a scheduler must not restart it.
# Slurm sends SIGTERM 120 seconds before a job's time limit, and this script requeues the job.
set -u

role=
stopped=
trap 'stopped=yes; [ -z "$role" ] || kill -TERM "$role"' TERM
trinity-db "$@" &
role=$!
[ -z "$stopped" ] || kill -TERM "$role"
while kill -0 "$role" 2>/dev/null; do # a signal interrupts `wait` while the role still works
    wait "$role"
done
wait "$role"
code=$?
[ -z "$stopped" ] || [ "$code" -ne 0 ] || code=143

if [ -n "${SLURM_JOB_ID:-}" ] && [ "$code" -ne 0 ]; then
    # A failure in the first minute, such as a wrong configuration, would repeat.
    if [ "$code" -eq 143 ] || [ "$SECONDS" -ge 60 ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit "$code"
