"""A run copied without loss: every row of it in a folder of Parquet files, and back into any store.

    tables              which rows belong to a run, and what refers to what: from the models
    columns             how a column stands in a binary COPY and in a Parquet file
    folder              the files, the manifest, and the checks before anything is believed
    exporter            from one snapshot of the store into a folder
    importer            from a folder into a store, in one transaction, next to all that is there

A table or a column that is added to the models is copied with the rest. What foreign keys do not say of it
stands in its `info`, in the words of `schema.base`.
"""
