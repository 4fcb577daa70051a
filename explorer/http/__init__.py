"""The recording endpoint: programs query the policy over HTTP, and each call is stored before it is
answered."""
