"""Watches a training script from inside its ranks, and writes down what it does; torch is all that it needs.

An audit loads it into a script that knows nothing of it (hook/sitecustomize.py). Whatever fails here is written down
and switches the observer off; it never reaches the script.
"""
