"""The store's verbs: what the roles may do to rows, each one a named statement or a few in one transaction.

    runs        open a run, adopt imported rows, finish, announce, metrics
    metrics     read what was measured, in order and only once      (sinks)
    workers     register, heartbeat, stop, give back what dead workers held
    groups      pace, claim, write rollouts                         (explorer)
    processing  claim, pass, drop, settle whole groups, pair        (processors)
    rewards     record events and everything that follows from them (processors, people)
    samplers    which groups a draw takes                           (trainer)
    attempts    compare the members of drawn groups                 (trainer)
    batches     draw, read, commit, reopen                          (trainer)
    payloads    read arrays wherever they are, archive them         (trainer, archiver)
    scores      what other models say of rows                       (score processor, trainer)
    pruning     take away what runs need no more                    (command line)
    replay      run a draw again                                    (command line)
    policies    publish versions, find whole checkpoints            (trainer, explorer)
    offline     give adopted rows their tokens, count them          (trainer)

Every verb takes an open transaction, so that callers decide what belongs together; none holds
it across model work, files or sleep.
"""
