"""`python -m selfsched_simulator`: the same as `selfsched-broker simulate`."""

from selfsched_simulator.cli import main

if __name__ == "__main__":
    main()
