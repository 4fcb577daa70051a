#!/usr/bin/env bash
# The whole example, from the project's folder: configs/reward_model/run.sh FOLDER [extra arguments of run, such as --set trainer.steps=10]
#
# Tasks and pairs go to FOLDER. If the script is stopped, run it again: it continues.
set -euo pipefail
trap 'exit 130' INT TERM # a stopped role exits with 0, so the script would continue
data=${1:?usage: configs/reward_model/run.sh FOLDER [--set KEY=VALUE ...]}
shift
here=configs/reward_model

python $here/make_pairs.py "$data"
trinity-db import "$data/tasks.jsonl" --as tasks --name large-digits
trinity-db import "$data/pairs.jsonl" --as preferences --name large-digits-pairs
trinity-db train $here/reward.yaml
trinity-db run $here/ppo.yaml "$@"
trinity-db sql - < $here/curve.sql
