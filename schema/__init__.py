"""The contract: every table of the store, in the order in which a row meets them.

    taskset, task       import           what there is to attempt
    run                 command line     one training effort, or one imported data set
    run_setting         command line     the configuration of a run, a row with each change
    worker              every role       who works on it; leases live as long as a worker's heartbeat
    policy_version      trainer          weights that explorers may use, and checkpoints of some
    task_pass           explorer         how far a run is in its pass over a taskset
    task_stat           explorer, processors, people   how often a run issued and solved each task
    rollout_group       explorer         attempts at one task that are compared with one another
    agent, call         explorer         a program that attempts a task over HTTP, and what it asked
    park                explorer, people a point from which an attempt goes on when it is answered
    rollout             explorer         one attempt
    experience          explorer, import one trainable sequence: the hot row that moves through the states
    experience_text     explorer, import prompt and response for people
    payload             explorer, trainer, archiver  the token arrays, or their place in the archive
    archive             archiver         a run's archive, and the worker that may write it
    score               score processor, trainer  log-probabilities of a row's tokens under another model
    reward_event        score processor, import, people   one statement about a rollout
    review, label       people           a row or pair that waits for verdicts, and what each person said
    decision            people           what people have decided of a pair, each time that it changed
    step_list           processors       the steps that a processor worked by
    processing          processors       a verdict of a processor on a row
    minhash             processors       by which near duplicates of a response are found
    overlap             processors, people   evidence that a row has text of a task for evaluation
    rescore             rescore          a group whose rows are being judged again
    group_priority      processors, people   a priority of a group: due, computed or given up
    synthesis           processors       a group that tasks or responses are made from
    origin              processors       a made task or response, and what from
    preference          import, pair processor, people   two experiences, a better and a worse one
    pairing             processors, trainer, people  where the pair processor has to look again
    batch, batch_item   trainer          the rows of a step, with the numbers used
    drop                explorer, processors, trainer  a row that will not be trained on, with the reason
    metric              every role       one measured number
    setback             trainer          steps and versions that the server has lost
    store_instance      trainer, archiver  which store this is: a copy of it is another one

The tables are SQLAlchemy models, one family a file. `queries/` holds every statement that moves a row,
`views.sql` the views and functions that people and statements ask. `migrations/` brings a store from one
version to the next.
"""

if __name__ != "trinity_db.schema":
    # A second import under the bare name would make a second set of tables.
    raise ImportError("Import trinity_db.schema.")

# The migration this code was written for; a test holds it equal to the newest in migrations/.
HEAD = "0047"
