"""What a person is shown of a run, during it or afterwards: counted, measured, put in words."""
