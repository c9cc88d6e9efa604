"""Published comparisons that had the defects, and the names that the exhibits share."""

LANGUAGE_MODEL = "a language model of 0.5 billion parameters, 1.34x on 2 GPUs"
SALTED_CLASSIFIER = "a text classifier, 3.49x on 4 GPUs at stable accuracy; 0.36x in time to that accuracy"
UNSHARDED_CLASSIFIER = "a text classifier, 0.46x and 0.80x, said to be bound by communication; really 1.85x and 3.20x"
IMAGE_CLASSIFIER = "an image classifier, twice as fast on 2 nodes"
SEARCH = "a search for the best parameters of a language model of 0.5 billion parameters on movie reviews"
SHARDED_VARIANTS = "sharded and pipelined variants of a training, said to reach a similar loss"
KNOWN_MISTAKE = "no single claim: a mistake that training loops are known for"

WORLD_SIZE = 'int(__import__("os").environ.get("WORLD_SIZE", 1))'
"""In a mutated line: the number of ranks, as the launcher tells it."""
DIFFERENT_PARAMETERS = "train: the ranks hold different parameters"
DIFFERENT_TOKENS = "train: the ranks learned from"
