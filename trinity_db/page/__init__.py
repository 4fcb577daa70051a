"""The web page of a store: `trinity-db page`. It reads with the reader login; some visitors may also write.

    server        serves browsers until Ctrl-C
    listening     the address and port that the page listens on
    origin        the page's public address; requests for other hosts or from other sites are refused
    access        admits browsers with a valid key, for pages, files and sockets alike
    keyring       the people of the page, with their rights and the hashes of their keys
    sockets       keeps a socket from acting on another visitor's page
    rights        what a visitor may do; every page checks it
    threads       run database work, so that the event loop never blocks on it
    reader        runs the pages' queries
    writer        stores people's verdicts, each under the person's name
    launching     starts runs as separate processes
    manager       what visitors with the right to manage may do with runs
    answers       shares query results between visitors who follow the same thing
    questions     queries of the page alone; the others are in `inspection` and `diagnosis`
    pass_rates    queries about how often tasks are solved
    people        queries about people's verdicts
    layout        the parts of every page: head, notices, refreshing
    elements      tables, facts, tokens and keys, as components that show every text as text
    forms         form fields, and how their values are read from a link
    charts        curves of one run or of several
    alerts        problems of runs that the doctor finds
    flow          counts of a run's rows by state, and which role waits
    events        the events of a run
    settings      settings by dotted keys, and what changed
    comparison    queries for runs that are compared
    statements    people's SQL statements, each on a separate connection
    examples      the questions of the cookbook
    conversation  turns, one below the other
    judging       a person who labels a queue
    drafting      a configuration that a visitor edits, checks and starts
    managing      the buttons that manage a run
    runs, run, compare, experiences, group, experience, similar, tasks, task, evaluation, verdicts, sql,
    doctor, start   one page each

Texts in a store come from models and strangers. A text reaches the browser as a value of a component, which
makes a text node of it, never as HTML. Never hand a dict whose keys come from the store to a component:
NiceGUI evaluates values under keys that begin with a colon.
"""
