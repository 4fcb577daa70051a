"""Import of files into the store, and export.

    readers             rows of a file as JSON values: files, cells, tables
    formats             conversion of other programs' rows to our columns, one file each
    mapping, columns    meaning of columns: user-defined, by convention
    records             validated rows, with a key derived from their content
    trace_turn, traces  OpenEnv's traces: turns of an engine as token sequences; trace_export writes them
    rejects             rejected rows with reasons, and the summary
    dataset, importer   records into tasks, or into a data set that runs adopt
    exporter            rows back into a file that an import reads without loss

No row is dropped silently.
"""
