"""``python -m prudent``."""

from prudent.cli import main

main()
