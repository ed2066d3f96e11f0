"""`python -m selfsched` is the command `selfsched` of this very Python."""

from selfsched.cli import main

if __name__ == "__main__":
    main()
