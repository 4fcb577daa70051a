"""This folder is on the path of vLLM's processes, which may have another Python and none of our packages."""
