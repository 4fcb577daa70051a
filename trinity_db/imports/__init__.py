"""Data that others gathered: from a file into the store, and out of it again.

    readers             a file's rows as JSON values, one after the other: files, cells, tables
    formats             what a row of another program is in our columns, one file each
    mapping, columns    which column is the prompt: by the user's word, by convention
    records             what a row means, checked, with a key made of its content
    trace_turn, traces  OpenEnv's traces: turns of an engine as token sequences; trace_export writes them
    rejects             what cannot go on, each with its reason, and the summary
    dataset, importer   records into tasks, or into a data set that runs adopt
    exporter            rows back into a file that an import reads without loss

Nothing is left out silently.
"""
