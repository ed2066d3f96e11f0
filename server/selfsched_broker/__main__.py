"""`python -m selfsched_broker`."""

from selfsched_broker.cli import main

if __name__ == "__main__":
    main()
