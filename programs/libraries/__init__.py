"""Trainings after the first tutorial of libraries that train, small and offline: registered in `programs.evaluated`."""

from programs.libraries import hugging_face, jax_libraries, tensorflow_libraries, torch_libraries

__all__ = ["hugging_face", "jax_libraries", "tensorflow_libraries", "torch_libraries"]
