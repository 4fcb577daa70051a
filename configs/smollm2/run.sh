#!/usr/bin/env bash
# One of three examples, from the project's folder: configs/smollm2/run.sh addition|words|dpo FOLDER [GSM8K] [extra arguments, such as --set trainer.steps=5]
#
# Tasks, demonstrations and pairs go to FOLDER; dpo needs GSM8K, a folder with example_model_solutions.jsonl. MODEL, a
# variable of the environment, replaces the model's name. If the script is stopped, run it again: it continues.
set -euo pipefail
trap 'exit 130' INT TERM # a stopped role exits with 0, so the script would continue
usage="usage: configs/smollm2/run.sh addition|words|dpo FOLDER [GSM8K] [--set KEY=VALUE ...]"
example=${1:?$usage} data=${2:?$usage}
shift 2
gsm8k=()
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then gsm8k=("$1"); shift; fi
here=configs/smollm2
model=()
if [ -n "${MODEL:-}" ]; then model=(--set "model.path=$MODEL"); fi

python $here/make_data.py "$data" "${gsm8k[@]}"
case $example in
addition)
    trinity-db import "$data/addition.jsonl" --as tasks --name addition
    trinity-db import "$data/addition-test.jsonl" --as tasks --name addition-test
    trinity-db run $here/addition.yaml "${model[@]}" "$@"
    trinity-db evaluate smollm2-addition --taskset addition-test --version 0 --config $here/addition.yaml "${model[@]}"
    trinity-db evaluate smollm2-addition --taskset addition-test # the newest version
    ;;
words)
    trinity-db import "$data/words-demonstrations.jsonl" --as demonstrations --name words-demonstrations
    trinity-db import "$data/words.jsonl" --as tasks --name words
    trinity-db import "$data/words-test.jsonl" --as tasks --name words-test
    trinity-db train $here/words-sft.yaml "${model[@]}"
    trinity-db run $here/words-grpo.yaml "$@"
    trinity-db evaluate smollm2-words --taskset words-test --version 0
    trinity-db evaluate smollm2-words --taskset words-test
    ;;
dpo)
    trinity-db import "$data/pairs.jsonl" --as preferences --name gsm8k-pairs
    trinity-db train $here/dpo.yaml "${model[@]}" "$@"
    trinity-db sql "select step, round(value::numeric, 3) as accuracy from metric where name = 'eval/rewards/accuracies'
        and run_id = (select id from run where name = 'smollm2-dpo') order by step"
    ;;
*)
    echo "$usage" >&2
    exit 2
    ;;
esac
