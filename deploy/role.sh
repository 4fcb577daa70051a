#!/bin/bash
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append
#
# A role under a scheduler that starts again what failed: role.sh explore my-run.yaml
#
# trinity-db ends with 0 when its run is finished, and also when a signal stops it. A scheduler must tell these apart:
# a role that SIGTERM stopped ends with 143 here, after it has finished what it had in hand and given its leases back.
# A role that `trinity-db stop RUN` stopped ends with 0, since a scheduler is not to start it again.
# Slurm sends SIGTERM 120 seconds before the time of a job is over, and this script puts the job into the queue again.
set -u

role=
stopped=
trap 'stopped=yes; [ -z "$role" ] || kill -TERM "$role"' TERM
trinity-db "$@" &
role=$!
[ -z "$stopped" ] || kill -TERM "$role"
while kill -0 "$role" 2>/dev/null; do # each signal ends a wait, and the role is still at work
    wait "$role"
done
wait "$role"
code=$?
[ -z "$stopped" ] || [ "$code" -ne 0 ] || code=143

if [ -n "${SLURM_JOB_ID:-}" ] && [ "$code" -ne 0 ]; then
    # What fails in its first minute, as a wrong configuration does, would fail again.
    if [ "$code" -eq 143 ] || [ "$SECONDS" -ge 60 ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit "$code"
