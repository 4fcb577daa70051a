#!/usr/bin/env bash
# The whole example, from the project's folder: configs/frozenlake/run.sh FOLDER [extra arguments of run, such as --set trainer.steps=10]
#
# Tasks and demonstrations go to FOLDER. If the script is stopped, run it again: it continues.
set -euo pipefail
trap 'exit 130' INT TERM # a stopped role exits with 0, so the script would continue
data=${1:?usage: configs/frozenlake/run.sh FOLDER [--set KEY=VALUE ...]}
shift
here=configs/frozenlake

python $here/make_tasks.py "$data"
trinity-db import "$data/tasks.jsonl" --as tasks --name frozenlake
trinity-db import "$data/demonstrations.jsonl" --as demonstrations --name frozenlake-demonstrations
trinity-db train $here/warmup.yaml
trinity-db run $here/frozenlake.yaml "$@"
trinity-db sql - < $here/curve.sql
