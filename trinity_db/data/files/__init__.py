"""Files as rows: JSON lines, CSV, Parquet, Arrow, and data sets of the Hugging Face Hub."""
