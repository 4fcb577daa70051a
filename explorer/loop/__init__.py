"""The explorer's loop: claims, attempts under way, versions, evaluation, writes."""
