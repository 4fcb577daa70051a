"""The web page on a store: `trinity-db page`. It reads by the login of readers; some visitors may do more.

    server        answers browsers until Ctrl-C
    listening     where it listens
    origin        where browsers find it: other names and sites are refused
    access        lets in browsers that were given a key, for pages, files and sockets alike
    keyring       the people of the page, with their rights and the hashes of their keys
    sockets       a socket speaks for no page of another visitor
    rights        what a visitor may do; every page asks there
    threads       use a database, so that the event loop never waits for it
    reader        asks the database
    writer        stores the verdicts of people, each under a name of their own
    launching     starts runs as processes of their own
    manager       what visitors may do with runs who may manage them
    answers       of what visitors follow: asked once for all of them
    questions     the questions that only the page asks; the others are those of `inspection` and `diagnosis`
    pass_rates    those about how often tasks are solved
    people        those about people's verdicts
    layout        what all pages have: head, notices, how they follow the store
    elements      a table, facts, tokens, keys, as components that show every text as text
    forms         fields of forms, and what a link says in them
    charts        curves of a run, or of several
    alerts        what the doctor finds wrong with runs
    flow          how far the rows of a run are, and which role waits
    events        what happened to a run
    settings      settings by dotted keys, and what changed
    comparison    what is asked of runs that are compared
    statements    statements of people, each with a connection of its own
    examples      the questions of the cookbook
    conversation  turns, one below the other
    judging       a person at a queue
    drafting      a configuration that a visitor changes, checks and starts
    managing      the buttons of a run
    runs, run, compare, experiences, group, experience, similar, tasks, task, evaluation, verdicts, sql,
    doctor, start   a page each

Models and strangers wrote the texts in a store. A text reaches the browser as a value of a component, which
makes a text node of it, and never as HTML. A dict whose keys come from the store is never handed to a
component: NiceGUI evaluates values under keys that begin with a colon.
"""
