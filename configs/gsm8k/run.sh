#!/usr/bin/env bash
# All of GSM8K in one command: configs/gsm8k/run.sh FOLDER [extra arguments of train, such as --set trainer.epochs=1]
#
# FOLDER holds train.jsonl, with question and answer, and example_model_solutions.jsonl, with a solution of each of four
# models and whether it is correct. Running the script again imports nothing and ends at once.
set -euo pipefail
trap 'exit 130' INT TERM # a stopped role exits with 0, so the script would continue
data=${1:?usage: configs/gsm8k/run.sh FOLDER [--set KEY=VALUE ...]}
shift
here=$(dirname "$0")

trinity-db import "$data/example_model_solutions.jsonl" --as trajectories --name gsm8k-solutions \
    --map prompt=question --map 'response=*.solution' --map 'reward=*.is_correct' --map answer=ground_truth
trinity-db process "$here/dpo.yaml" "$@" --drain
trinity-db train "$here/dpo.yaml" "$@"
trinity-db sql "select step, name, value from metric where name in ('eval/rewards/margins', 'eval/rewards/accuracies')
    and run_id = (select id from run where name = 'gsm8k-dpo') order by step, name"

trinity-db import "$data/train.jsonl" --as tasks --name gsm8k-train --map prompt=question
trinity-db run "$here/explore.yaml"
trinity-db sql "select state, count(*), avg(reward) as reward from experience_view where run = 'gsm8k-explore' group by state"
