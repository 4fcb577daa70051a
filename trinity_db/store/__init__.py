"""The store's verbs: what the roles may do to rows, each one a named statement or a few in one transaction.

    runs        open a run, finish, announce
    adoption    copy rows of data sets and of other runs into a run
    settings    change the configuration of a run                   (command line)
    stopping    ask the workers of a run to stop                    (command line, page)
    metrics     write measured numbers, read each once and in order (roles, sinks)
    workers     register, heartbeat, stop, give back what dead workers held
    groups      pace, claim, write rollouts                         (explorer)
    calls       what agents ask, stored before it is answered       (explorer)
    parks       park attempts, answer them, go on with them         (explorer, people)
    processing  claim, pass, drop, pair                             (processors)
    settling    make whole groups ready, or drop them               (processors)
    rewards     record events and everything that follows from them (processors, people)
    samplers    which groups a draw takes                           (trainer)
    choices     which groups a draw takes by parts or by a SELECT   (trainer)
    own_select  run a SELECT of a user's                            (explorer, trainer)
    attempts    compare the members of drawn groups                 (trainer)
    draws       draw and lease what a batch takes                   (trainer)
    batches     read, commit, reopen                                (trainer)
    payloads    read arrays from Postgres or the archive, move them (trainer, archiver)
    scores      log-probabilities of rows under other models        (score processor, trainer)
    policies    publish versions, find whole checkpoints            (trainer, explorer)
    setbacks    record and mend what a server has lost              (trainer)
    offline     give adopted rows their tokens, count them          (trainer)
    replay      run a draw again                                    (command line)
    pruning     delete rows and arrays that a run needs no more     (command line)
    deletion    delete a whole run                                  (command line)
    instances   which store this is: the original or a copy         (trainer, archiver)

The statements of a module are those in the file of its name in `schema/queries/`, and no module runs
another's: it calls the verb. Every verb takes an open transaction, so that callers decide what belongs
together; none holds it across model work, files or sleep.
"""
