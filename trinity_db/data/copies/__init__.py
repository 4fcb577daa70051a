"""Lossless copies of a run: every row of it in a folder of Parquet files, which any store can import.

    tables              which rows belong to a run, and which columns refer to which tables: from the models
    columns             representation of a column in a binary COPY and in a Parquet file
    folder              files, manifest, and checks of untrusted folders
    exporter            from one snapshot of the store to a folder
    importer            from a folder to a store, in one transaction, without affecting existing rows

A table or column added to the models is included automatically. Properties that its foreign keys do not
express are declared in its `info`, with the constants of `schema.base`.
"""
