"""`python -m jaxrl_vr` is the console script."""

from jaxrl_vr.cli import main

if __name__ == "__main__":
    main()
