"""`python -m rrpa_sidecar` is `rrpa`."""

from rrpa_sidecar.cli import main

if __name__ == "__main__":
    main()
