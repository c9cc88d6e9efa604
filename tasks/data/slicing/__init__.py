"""What the stage `slice` makes rows of.

Texts become tokens (tokens.py). A workload of which that is not true has a file here, found by its name, which offers
`write_slices(params, raw=, base_model=, slices=)`: a folder per range and the manifests, as tasks/slice.py makes them.
"""
