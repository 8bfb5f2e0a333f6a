"""`python -m ppo`."""

from ppo.cli import main

if __name__ == "__main__":
    main()
