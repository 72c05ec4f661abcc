"""``python -m fedbasis`` is ``fedbasis``."""

from fedbasis.cli import main

if __name__ == "__main__":
    main()
