"""The contract: every table of the store, in the order in which a row meets them.

    taskset, task       import           what there is to attempt
    run                 command line     one training effort, or one imported data set
    run_setting         command line     the configuration of a run, a row with each change
    worker              every role       who works on it; leases live as long as a worker's heartbeat
    policy_version      trainer          weights that explorers may use, and their checkpoint
    task_stat           explorer, processors   how a run fares with each task
    rollout_group       explorer         attempts at one task that are compared with one another
    rollout             explorer         one attempt
    experience          explorer, import one trainable sequence: the hot row that moves through the states
    experience_text     explorer, import prompt and response for people
    payload             explorer, trainer, archiver  the token arrays, or where the archive has them
    archive             archiver         where a run's archive stands, and who may write it
    score               score processor, trainer  what another model says of a row's tokens
    reward_event        score processor, import, people   one statement about a rollout
    step_list           processors       by which steps a processor worked
    processing          processors       what a processor did with a row
    preference          import, pair processor   two experiences, a better and a worse one
    pairing             processors, trainer, people  where the pair processor has to look again
    batch, batch_item   trainer          what was drawn for a step, with the numbers used
    drop                explorer, processors, trainer  a row that will not be trained on, with the reason
    metric              every role       one measured number
    setback             trainer          steps and versions that the server has lost
    store_instance      trainer, archiver  which store this is: a copy of it is another one

The tables are SQLAlchemy models, one family a file; `queries/` holds every statement that moves
a row; `views.sql` what people ask; `migrations/` how a store gets from one version to the next.
"""

if __name__ != "trinity_db.schema":
    # A second import under the bare name would make a second set of tables.
    raise ImportError("Import trinity_db.schema.")

# The migration this code was written for; a test holds it equal to the newest in migrations/.
HEAD = "0017"
