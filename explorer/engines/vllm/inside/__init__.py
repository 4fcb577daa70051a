"""Import path of vLLM's processes, which may have another Python version and none of our packages."""
