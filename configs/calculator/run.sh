#!/usr/bin/env bash
# The whole example, from the project's folder: configs/calculator/run.sh FOLDER [extra arguments of run, such as --set trainer.steps=10]
#
# Tasks and demonstrations go to FOLDER. If the script is stopped, run it again: it continues.
set -euo pipefail
trap 'exit 130' INT TERM # a stopped role exits with 0, so the script would continue
data=${1:?usage: configs/calculator/run.sh FOLDER [--set KEY=VALUE ...]}
shift
here=configs/calculator

python $here/make_tasks.py "$data"
trinity-db import "$data/tasks.jsonl" --as tasks --name calculator
trinity-db import "$data/demonstrations.jsonl" --as demonstrations --name calculator-demonstrations
trinity-db train $here/warmup.yaml
trinity-db run $here/calculator.yaml "$@"
trinity-db sql - < $here/curve.sql
