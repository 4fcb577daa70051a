"""The recording endpoint: programs ask the policy over HTTP, and each call is stored before its answer."""
