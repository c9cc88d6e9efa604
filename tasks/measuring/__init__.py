"""What the stage `measure` measures, one file per kind of measurement; its ranks run training/probing/."""
