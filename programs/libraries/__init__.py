"""Trainings after the first tutorial of libraries that train, small and offline: registered in `programs.evaluated`."""
