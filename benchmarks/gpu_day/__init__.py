"""`make gpu-day`: all that a first half hour on a card is for (README of the results: summary.md)."""
