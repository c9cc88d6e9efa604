"""What the stage `evaluate` shows of a model beside its figures."""
