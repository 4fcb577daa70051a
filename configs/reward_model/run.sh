#!/usr/bin/env bash
# The whole example, from the project's folder: configs/reward_model/run.sh FOLDER [extra arguments of run, as --set trainer.steps=10]
#
# Tasks and pairs go to FOLDER. If the script is stopped, give the command again: it goes on.
set -euo pipefail
trap 'exit 130' INT TERM # a role that is stopped ends with 0, so the script would go on
data=${1:?usage: configs/reward_model/run.sh FOLDER [--set KEY=VALUE ...]}
shift
here=configs/reward_model

python $here/make_pairs.py "$data"
trinity-db import "$data/tasks.jsonl" --as tasks --name large-digits
trinity-db import "$data/pairs.jsonl" --as preferences --name large-digits-pairs
trinity-db train $here/reward.yaml
trinity-db run $here/ppo.yaml "$@"
trinity-db sql - < $here/curve.sql
