"""The processes that train one policy together, and the weights they share."""
