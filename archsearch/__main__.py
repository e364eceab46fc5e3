"""`python -m archsearch`: the command line without an installed script."""

from archsearch.cli import main

if __name__ == "__main__":
    main()
