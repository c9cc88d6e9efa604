"""The audit of anybody's training script: started as it is, watched from inside, and judged by what was seen."""
