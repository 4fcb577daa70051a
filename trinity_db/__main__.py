"""`python -m trinity_db` is the command `trinity-db`."""

from trinity_db.cli import main

main()
