"""All tables of the store, in the order in which a row passes through them.

    taskset, task       import           tasks to attempt
    run                 command line     one training effort, or one imported data set
    run_setting         command line     the configuration of a run, one row per change
    worker              every role       processes of a run; leases are valid while their heartbeats continue
    policy_version      trainer          weights for explorers, and checkpoints of some versions
    task_pass           explorer         position of a run in its pass over a taskset
    task_stat           explorer, processors, people   counts of attempts and solutions per run and task
    rollout_group       explorer         attempts at one task that are compared with each other
    agent, call         explorer         a program that attempts a task over HTTP, and its requests
    park                explorer, people a point from which an attempt resumes when it is answered
    rollout             explorer         one attempt
    experience          explorer, import one trainable sequence: the hot row that moves through the states
    experience_text     explorer, import prompt and response for people
    payload             explorer, trainer, archiver  the token arrays, or their place in the archive
    archive             archiver         a run's archive, and the worker that may write it
    score               score processor, trainer  log-probabilities of a row's tokens under another model
    reward_event        score processor, import, people   one reward of a rollout
    review, label       people           a row or pair that waits for verdicts, and each person's verdict
    decision            people           people's decisions on a pair, one row per change
    step_list           processors       the versions of a processor's list of steps
    processing          processors       a verdict of a processor on a row
    minhash             processors       index in which near duplicates of a response are found
    overlap             processors, people   evidence that a row has text of an evaluation task
    rescore             rescore          a group whose rows are being rescored
    group_priority      processors, people   a priority of a group: due, computed or given up
    synthesis           processors       a group from which tasks or responses are made
    origin              processors       a made task or response, and its source
    preference          import, pair processor, people   two experiences, a better and a worse one
    pairing             processors, trainer, people  groups to check for new pairs
    batch, batch_item   trainer          the rows of a step, with the numbers used
    drop                explorer, processors, trainer  a row that will not be trained on, with the reason
    metric              every role       one measured number
    setback             trainer          steps and versions that the server has lost
    store_instance      trainer, archiver  identity of this store; a copy is another one

The tables are SQLAlchemy models, one family per file. `queries/` contains every statement that changes a row,
`views/` the views and functions for people and statements. `migrations/` upgrades a store from one version
to the next.
"""

if __name__ != "trinity_db.schema":
    # A second import under the bare name would create a second set of tables.
    raise ImportError("Import trinity_db.schema.")

# The migration that this code requires; a test keeps it equal to the newest in migrations/.
HEAD = "0002"
